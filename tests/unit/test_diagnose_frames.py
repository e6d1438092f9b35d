"""What single stacks mean, and how a site adds to the table."""

from __future__ import annotations

import pytest

from snapshotter.stacks.activity import Activity, classify, operation_of
from snapshotter.stacks.knowledge import Entry, with_entries
from snapshotter.stacks.model import Frame
from tests.programs.dump_stacks import CAUSES, STACKS, WAITING

TABLE = with_entries(())
SITE = "/opt/venv/lib/python3.11/site-packages/"


def frames(*lines: str) -> tuple[Frame, ...]:
    """`function path:line`, innermost first."""
    found = []
    for line in lines:
        function, _, place = line.rpartition(" ")
        path, _, number = place.rpartition(":")
        found.append(Frame(function, path.replace("S/", SITE), int(number)))
    return tuple(found)


def known(name: str) -> Activity:
    return classify(tuple(Frame(f["name"], f["filename"], f["line"]) for f in reversed(STACKS[name])), TABLE)


@pytest.mark.parametrize("name", [name for name in WAITING if not name.startswith("own_")])
def test_waits(name: str) -> None:
    assert known(name).waits


@pytest.mark.parametrize(("name", "cause"), [(n, c) for n, c in CAUSES.items() if n != "native_in_module"])
def test_own_work(name: str, cause: str) -> None:
    found = known(name)
    assert not found.waits
    assert found.cause == cause


@pytest.mark.parametrize(
    ("cause", "stack"),
    [
        # Code that lies in a folder called data or checkpoint is neither by that alone.
        ("application", ("step /data/me/train.py:9", "<module> /data/me/train.py:20")),
        ("application", ("decide /mnt/checkpoints/me/policy.py:9", "<module> /mnt/checkpoints/me/run.py:20")),
        # Activation checkpointing is no checkpoint.
        ("compute", ("forward S/torch/nn/modules/linear.py:1", "checkpoint S/torch/utils/checkpoint.py:9")),
        ("compute", ("forward S/torch/nn/modules/linear.py:1", "f /deepspeed/activation_checkpointing/x.py:9")),
        # Runtime of compiled code is no compilation.
        ("compute", ("call /tmp/torchinductor_me/ab/c.py:4", "_fn S/torch/_dynamo/eval_frame.py:9")),
        # A script's own top level is its own code, whatever waits inside.
        ("application", ("wait /usr/lib/python3.11/threading.py:327", "<module> /job/run.py:9")),
        ("application", ("_try_wait /usr/lib/python3.11/subprocess.py:9", "<module> /job/run.py:9")),
        # Training on a dataset is no reading of one.
        ("application", ("update /job/agent.py:3", "train_on_dataset /job/agent.py:70", "<module> /job/agent.py:90")),
        # Ray fetches every object alike: a batch that Ray Data waits for is data.
        ("data", ("get_objects S/ray/_private/worker.py:8", "_next S/ray/data/iterator.py:1", "loop /job/run.py:9")),
        # What is read for a checkpoint is checkpoint; what a dataset reads is data; what an unknown one reads storage.
        ("checkpoint", ("read_exact /job/io.py:3", "load S/torch/serialization.py:9", "main /job/run.py:1")),
        ("data", ("read S/botocore/response.py:9", "__getitem__ /job/things.py:3", "main /job/run.py:1")),
        # An operator called by name is whatever calls it: a collective that waits, or the module that computes.
        ("communication", ("redispatch S/torch/_ops.py:882", "autograd_impl S/torch/_library/autograd.py:123",
                           "__call__ S/torch/_ops.py:1279",
                           "wait_tensor S/torch/distributed/_functional_collectives.py:142",
                           "redistribute S/torch/distributed/tensor/_api.py:731", "main /job/run.py:1")),
        ("compute", ("__call__ S/torch/_ops.py:1279", "forward /job/kernels/norm.py:4", "main /job/run.py:1")),
        # Formats of data sets are data wherever they are read.
        ("data", ("sync S/zarr/core/sync.py:140", "load_window /job/era5.py:88", "main /job/run.py:1")),
        ("storage_io", ("read S/botocore/response.py:9", "fetch_lexicon /job/things.py:3", "main /job/run.py:1")),
        ("application", ("recv_into /usr/lib/python3.11/socket.py:705", "ask /job/oracle.py:4", "main /job/run.py:1")),
        ("application", ("post S/requests/api.py:115", "ask /job/oracle.py:4", "main /job/run.py:1")),
        # Running under a debugger is not standing in one.
        ("application", ("go /job/run.py:9", "run /usr/lib/python3.11/bdb.py:600", "main /lib/python3.11/pdb.py:17")),
        ("data", ("_read_video /job/clips.py:3", "_worker_loop S/torch/utils/data/_utils/worker.py:300")),
    ],
)  # fmt: skip
def test_look_alikes(cause: str, stack: tuple[str, ...]) -> None:
    assert classify(frames(*stack), TABLE).cause == cause


def test_work_inside_a_wait_is_work() -> None:
    hook = (
        "my_hook /job/hooks.py:3",
        "_engine_run_backward S/torch/autograd/graph.py:9",
        "main /job/run.py:1",
    )
    assert not classify(frames(*hook), TABLE).waits
    assert classify(frames(*hook[1:]), TABLE).waits


def test_operations() -> None:
    names = {
        "all_gather_into_tensor": "all_gather",
        "all_gather_object": "all_gather",
        "broadcast_object_list": "broadcast",
        "allreduce_": "all_reduce",
        "grouped_allreduce_async_": "all_reduce",
        "reduce_scatter_tensor": "reduce_scatter",
        "all_to_all_single": "all_to_all",
        "monitored_barrier": "barrier",
        "ProcessGroup.barrier": "barrier",
        "_": "_",
    }
    assert {name: operation_of(name) for name in names} == names


def test_says_which_code_of_the_job_called_the_library() -> None:
    found = known("http_get")
    assert found.site is not None
    assert found.site.name == "fetch_prompt_table"
    assert known("lock").site is None


LIB = "/usr/lib/python3.12"


@pytest.mark.parametrize(
    ("kind", "stack"),
    [
        (
            "subprocess",
            (
                f"select {LIB}/selectors.py:415",
                f"_communicate {LIB}/subprocess.py:2115",
                f"run {LIB}/subprocess.py:550",
                "read_topology /home/ml/proj/fabric.py:20",
            ),
        ),
        (
            "lock",
            (
                f"select {LIB}/selectors.py:415",
                f"wait {LIB}/multiprocessing/connection.py:1136",
                f"get {LIB}/multiprocessing/queues.py:113",
                "tally /home/ml/proj/run.py:20",
            ),
        ),
        (
            "lock",
            (
                f"select {LIB}/selectors.py:468",
                f"_run_once {LIB}/asyncio/base_events.py:1961",
                f"run {LIB}/asyncio/runners.py:190",
                "announce /home/ml/proj/run.py:20",
            ),
        ),
        (
            "lock",
            (
                f"get {LIB}/multiprocessing/queues.py:103",
                f"run {LIB}/multiprocessing/process.py:108",
                f"_bootstrap {LIB}/multiprocessing/process.py:314",
            ),
        ),
    ],
)
def test_sockets_and_selectors_are_means(kind: str, stack: tuple[str, ...]) -> None:
    assert classify(frames(*stack), TABLE).kind == kind


def test_nothing_on_the_stack() -> None:
    found = classify((), TABLE)
    assert (found.waits, found.cause, found.frame) == (False, "unknown", None)


def test_a_site_adds_what_it_knows() -> None:
    ring = frames("spin /fabric/ring.py:61", "main /job/run.py:1")
    assert classify(ring, TABLE).cause == "application"
    taught = with_entries([Entry("collective", r"/fabric/ring\.py", "spin|exchange")])
    assert classify(ring, taught).waits
    assert classify(frames("other /fabric/ring.py:61"), taught).cause == "application"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (Entry("colective", "x"), "colective"),  # type: ignore[arg-type]
        (Entry("data", "("), "regular expression"),
        (Entry("data", "", "["), "regular expression"),
        (Entry("data"), "every frame"),
    ],
)
def test_refuses_what_cannot_be_meant(entry: Entry, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_entries([Entry("lock", "fine"), entry])
