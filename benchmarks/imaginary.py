"""A capture of an imaginary job of any size, for benchmarks and tests of what shows captures.

One rank is stuck in a read, the rest wait for it in a collective; one could not be captured. Names are
plain or, for tests, hostile: markup, quotes, control characters and marks that turn the direction of text.
"""

from __future__ import annotations

from snapshotter.stacks.model import (
    Counters,
    Frame,
    JobCapture,
    NcclAnswer,
    NodeAnswer,
    Outcome,
    Process,
    Sample,
    Thread,
)

RANKS_PER_NODE = 8
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&amp;\n\u202eevil\u2066;|@%"

_SITE = "/usr/local/lib/python3.12/dist-packages/"
_MEGATRON = "/workspace/Megatron-LM/"


def _frame(name: str, filename: str, line: int) -> Frame:
    return Frame(name, filename, line, short_filename="/".join(filename.split("/")[-3:]))


_TRAIN = (  # root first
    _frame("<module>", f"{_MEGATRON}pretrain_gpt.py", 268),
    _frame("pretrain", f"{_MEGATRON}megatron/training/training.py", 421),
    _frame("train", f"{_MEGATRON}megatron/training/training.py", 1520),
    _frame("train_step", f"{_MEGATRON}megatron/training/training.py", 770),
)
WAITING = (
    *_TRAIN,
    _frame("finalize_model_grads", f"{_MEGATRON}megatron/core/distributed/finalize_model_grads.py", 221),
    _frame("wrapper", f"{_SITE}torch/distributed/c10d_logger.py", 83),
    _frame("all_reduce", f"{_SITE}torch/distributed/distributed_c10d.py", 2896),
)
STUCK = (
    *_TRAIN,
    _frame("forward_step", f"{_MEGATRON}megatron/core/pipeline_parallel/schedules.py", 275),
    _frame("get_batch", f"{_MEGATRON}pretrain_gpt.py", 94),
    _frame("__getitem__", f"{_MEGATRON}megatron/core/datasets/gpt_dataset.py", 310),
    _frame("read", f"{_MEGATRON}megatron/core/datasets/indexed_dataset.py", 344),
)
_WORKER = (
    _frame("_worker_loop", f"{_SITE}torch/utils/data/_utils/worker.py", 326),
    _frame("get", "/usr/lib/python3.12/multiprocessing/queues.py", 113),
)
_BACKGROUND = {
    f"Thread-{number}": (
        _frame("_bootstrap", "/usr/lib/python3.12/threading.py", 1032),
        _frame(f"loop_{number}", f"/workspace/model/background_{number}.py", 20 + number),
        _frame("wait", "/usr/lib/python3.12/threading.py", 655),
    )
    for number in range(5)
}

_NCCL = """NCCL version 2.26.2 compiled with CUDA 12.2
CUDA runtime version 12020, driver version 13010

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         3         4         3   RUNNING  INCOMPLETE
    1         1         1         4         4         4   RUNNING      OK

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 28632 on node 127.0.0.2 managing GPU 3

Warnings
========

"""


def imaginary_job(
    ranks: int, *, stuck: int = 40, job_id: str = "llama-70b", workers: int = 1, hostile: bool = False
) -> JobCapture:
    """A job of `ranks` ranks, eight to a node, with `workers` DataLoader workers each and two samples.

    Rank `stuck` (the last where there are fewer) is culprit; rank 3, where there is one, could not be read.
    """
    stuck = min(stuck, ranks - 1)
    evil = _frame(HOSTILE, f"/data/{HOSTILE}.py", 13) if hostile else None
    odd = (*STUCK, evil) if evil else STUCK
    nodes = []
    for first in range(0, ranks, RANKS_PER_NODE):
        name = f"gpu-node-{first // RANKS_PER_NODE}" + (HOSTILE if hostile and first == 0 else "")
        processes: list[Process] = []
        for rank in range(first, min(ranks, first + RANKS_PER_NODE)):
            stack = odd if rank == stuck else WAITING
            lost: Outcome = "denied" if rank == 3 and stuck != 3 else "ok"
            processes.append(_trainer(rank, ranks, name, stack, lost, hostile=hostile))
            processes.extend(_loader(rank, ranks, name, worker) for worker in range(workers))
        nodes.append(
            NodeAnswer(
                node=name,
                outcome="ok",
                started_at=1_795_915_200.0,
                finished_at=1_795_915_206.0,
                job_id=job_id,
                processes=tuple(processes),
                nccl=NcclAnswer(_NCCL) if first == 0 else None,
            )
        )
    return JobCapture(job_id, tuple(nodes), world_size=ranks)


def _trainer(
    rank: int, ranks: int, node: str, stack: tuple[Frame, ...], outcome: Outcome, *, hostile: bool
) -> Process:
    pid, is_stuck = 10_000 + 100 * rank, stack is not WAITING
    main = Thread(1, "MainThread", pid, True, False, stack[::-1])
    others = tuple(
        Thread(2 + number, name, pid + 1 + number, False, False, frames[::-1])
        for number, (name, frames) in enumerate(_BACKGROUND.items())
    )
    samples = tuple(
        Sample(
            taken_at=1_795_915_200.0 + 5 * number,
            outcome=outcome,
            error="ptrace: operation not permitted: give CAP_SYS_PTRACE" if outcome != "ok" else None,
            threads=(main, *others) if outcome == "ok" else (),
            state="D" if is_stuck else "R",
            wchan="nfs_wait_bit_killable" if is_stuck else None,
            kernel_stack=("nfs_wait_bit_killable", "nfs_read_folio", "vfs_read") if is_stuck else (),
            counters=Counters(cpu_seconds=100.0 + (0.0 if is_stuck else 5.0 * number)),
        )
        for number in range(2)
    )
    return Process(
        pid=pid,
        node=node,
        role="trainer",
        rank=rank,
        outcome=outcome,
        error=samples[0].error,
        local_rank=rank % RANKS_PER_NODE,
        world_size=ranks,
        gpu=str(rank % RANKS_PER_NODE),
        pod=f"llama-worker-{rank // RANKS_PER_NODE}" + (HOSTILE if hostile else ""),
        name="python3",
        command_line=f"python3 pretrain_gpt.py --rank {rank}" + (HOSTILE if hostile else ""),
        samples=samples,
    )


def _loader(rank: int, ranks: int, node: str, worker: int) -> Process:
    pid = 10_050 + 100 * rank + worker
    thread = Thread(1, "MainThread", pid, False, False, _WORKER[::-1])
    samples = tuple(
        Sample(taken_at=1_795_915_200.0 + 5 * number, outcome="ok", threads=(thread,), state="S")
        for number in range(2)
    )
    return Process(
        pid=pid,
        node=node,
        role="dataloader",
        rank=rank,
        outcome="ok",
        world_size=ranks,
        worker=worker,
        name="pt_data_worker",
        samples=samples,
    )
