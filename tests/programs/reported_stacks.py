# ruff: noqa: E501 - the stacks are data
"""Jobs that hung elsewhere: stacks as people paste them into public threads, and who was to blame.

Written innermost first, as `py-spy dump` prints them; `S/` is site-packages, `L/` the standard library, `A/`
the job's own code, `M/` Megatron-LM. A frame in a library without a line is a C frame of `py-spy dump
--native`. A line `Thread: NAME` begins another thread. Outer frames that tell nothing are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

PLACES = {
    "S/": "/opt/conda/envs/train/lib/python3.10/site-packages/",
    "L/": "/usr/lib/python3.10/",
    "A/": "/workspace/job/",
    "M/": "/workspace/Megatron-LM/",
}

PARTS = {
    "c10d": "wrapper (S/torch/distributed/c10d_logger.py:83)",
    "backward": """
        _engine_run_backward (S/torch/autograd/graph.py:769)
        backward (S/torch/autograd/__init__.py:289)
        backward (S/torch/_tensor.py:521)
    """,
    "top": """
        main (A/train.py:290)
        <module> (A/train.py:400)
    """,
    "all_reduce": "all_reduce (S/torch/distributed/distributed_c10d.py:2806)\n@c10d",
    "barrier": "barrier (S/torch/distributed/distributed_c10d.py:4159)\n@c10d",
    "broadcast": "broadcast (S/torch/distributed/distributed_c10d.py:2841)\n@c10d",
    "native_end": "0x7fdc6442a1ca (libc.so.6)\n_start (python3.10)",
    "loader": """
        wait (L/threading.py:324)
        get (L/queue.py:180)
        _try_get_data (S/torch/utils/data/dataloader.py:1120)
        _get_data (S/torch/utils/data/dataloader.py:1284)
        _next_data (S/torch/utils/data/dataloader.py:1329)
        __next__ (S/torch/utils/data/dataloader.py:634)
    """,
    "idle": """
        select (L/selectors.py:416)
        wait (L/multiprocessing/connection.py:936)
        _poll (L/multiprocessing/connection.py:429)
        poll (L/multiprocessing/connection.py:262)
        get (L/multiprocessing/queues.py:113)
    """,
    # A forked worker still has the frames of the process that forked it.
    "forked": """
        run (L/multiprocessing/process.py:108)
        _bootstrap (L/multiprocessing/process.py:315)
        _launch (L/multiprocessing/popen_fork.py:71)
        __init__ (S/torch/utils/data/dataloader.py:1038)
        _get_iterator (S/torch/utils/data/dataloader.py:386)
        @top
    """,
    "eval": """
        eval_batch (S/deepspeed/runtime/pipe/engine.py:449)
        evaluate (M/megatron/training.py:983)
        train (M/megatron/training.py:904)
        <module> (M/pretrain_gpt.py:249)
    """,
    "extension": """
        load (S/torch/utils/cpp_extension.py:1284)
        _load_helper (M/megatron/fused_kernels/__init__.py:42)
        initialize_megatron (M/megatron/initialize.py:90)
        <module> (M/pretrain_gpt.py:117)
    """,
    "baton": "wait (S/torch/utils/file_baton.py:42)\n_jit_compile (S/torch/utils/cpp_extension.py:1523)\n@extension",
    "ninja": """
        communicate (L/subprocess.py:1154)
        run (L/subprocess.py:505)
        _run_ninja_build (S/torch/utils/cpp_extension.py:1900)
        _jit_compile (S/torch/utils/cpp_extension.py:1514)
        @extension
    """,
    "logits": """
        all_gather_into_tensor (S/torch/distributed/distributed_c10d.py:4049)
        @c10d
        all_gather_into_tensor (S/sglang/srt/distributed/parallel_state.py:620)
        tensor_model_parallel_all_gather (S/sglang/srt/distributed/communication_op.py:47)
        _get_logits (S/sglang/srt/layers/logits_processor.py:930)
        forward (S/sglang/srt/models/deepseek_nextn.py:409)
    """,
    "draft": """
        @logits
        draft (S/sglang/srt/speculative/eagle_worker_v2.py:550)
        forward_batch_generation (S/sglang/srt/speculative/eagle_worker_v2.py:1246)
        run_batch (S/sglang/srt/managers/scheduler.py:3259)
        <module> (<string>:1)
    """,
    "extend": """
        @logits
        _draft_extend_for_decode (S/sglang/srt/speculative/eagle_worker_v2.py:965)
        forward_batch_generation (S/sglang/srt/speculative/eagle_worker_v2.py:1259)
        run_batch (S/sglang/srt/managers/scheduler.py:3259)
        <module> (<string>:1)
    """,
    "executor": """
        worker_busy_loop (S/vllm/v1/executor/multiproc_executor.py:973)
        worker_main (S/vllm/v1/executor/multiproc_executor.py:879)
        <module> (<string>:1)
    """,
    "parked": """
        poll (S/zmq/sugar/poll.py:106)
        wait (S/vllm/distributed/device_communicators/shm_broadcast.py:198)
        acquire_read (S/vllm/distributed/device_communicators/shm_broadcast.py:698)
        dequeue (S/vllm/distributed/device_communicators/shm_broadcast.py:779)
        @executor
    """,
    "actor": """
        main_loop (S/ray/_private/worker.py:935)
        <module> (S/ray/_private/workers/default_worker.py:297)
        Thread: ray_print_logs
        select (L/selectors.py:416)
        _run_once (L/asyncio/base_events.py:1871)
        run (L/threading.py:953)
    """,
    "runner": """
        ThreadRunner.run.<locals>._run_target (S/ray/train/v2/_internal/execution/worker_group/thread_runner.py:60)
        run (L/threading.py:953)
        _bootstrap_inner (L/threading.py:1016)
    """,
    "session": """
        wait (L/threading.py:324)
        get (L/queue.py:180)
        get_next (S/ray/train/_internal/session.py:250)
        main_loop (S/ray/_private/worker.py:935)
        <module> (S/ray/_private/workers/default_worker.py:297)
        Thread: Thread-7
    """,
    "session_run": "_train_fn (S/ray/train/_internal/utils.py:118)\nrun (S/ray/air/_internal/util.py:88)\n_bootstrap (L/threading.py:973)",
    "found": """
        _load_unlocked (<frozen importlib._bootstrap>:688)
        _find_and_load (<frozen importlib._bootstrap>:1027)
        <module> (S/transformers/models/auto/modeling_auto.py:20)
        <module> (A/train.py:12)
    """,
    "zero_backward": """
        @backward
        backward (S/deepspeed/runtime/zero/stage3.py:2247)
        backward (S/deepspeed/runtime/engine.py:2020)
        @top
        Thread:
    """,
}

ONE = 5


@dataclass(frozen=True)
class Job:
    """`odd` and `others` are stacks; `who` says which ranks are odd. `blamed`: that those are the culprits.

    `causes`: those that an expert may name. `worker`, `idle`: the DataLoader workers of the odd and the others.
    """

    others: str
    causes: str
    odd: str = ""
    who: Callable[[int], set[int]] = lambda ranks: {ONE}
    blamed: bool = True
    worker: str = ""
    idle: str = ""


def _eighths(ranks: int) -> set[int]:
    return set(range(0, ranks, 8))


def _three_eighths(ranks: int) -> set[int]:
    return set(range(3 * ranks // 8))


def _last_eighth(ranks: int) -> set[int]:
    return set(range(ranks - ranks // 8, ranks))


def _first(ranks: int) -> set[int]:
    return {0}


JOBS = {
    # One rank loads data for an evaluation, its pipeline and the others wait, each in its own way.
    "eval_loader": Job(
        "broadcast (S/torch/distributed/distributed_c10d.py:1191)\n_bcast_pipe_scalar (S/deepspeed/runtime/pipe/engine.py:542)\n@eval",
        "data",
        "@loader\n_exec_load_micro_batch (S/deepspeed/runtime/pipe/engine.py:795)\n_exec_schedule (S/deepspeed/runtime/pipe/engine.py:1380)\n@eval",
    ),
    "uneven_batches": Job(
        "@all_reduce\n_sync_ddp (S/lightning/fabric/utilities/distributed.py:231)\non_advance_end (S/lightning/pytorch/loops/training_epoch_loop.py:381)\n@top",
        "communication compute",
        "@backward\nadvance (S/lightning/pytorch/loops/training_epoch_loop.py:250)\n@top",
    ),
    "save_on_one": Job(
        "@backward\nadvance (S/lightning/pytorch/loops/training_epoch_loop.py:250)\n@top",
        "communication",
        "@barrier\nsave_checkpoint (S/lightning/pytorch/trainer/trainer.py:1374)\n@top",
        _first,
    ),
    "prepare_on_one": Job(
        "@barrier\nsafe_ddp_context (S/swift/utils/torch_utils.py:66)\n@top",
        "data",
        "_recv (S/multiprocess/connection.py:398)\n_callmethod (S/multiprocess/managers.py:818)\nget (<string>:2)\niflatmap_unordered (S/datasets/utils/py_utils.py:610)\nmap (S/datasets/arrow_dataset.py:3623)\n@top",
        _first,
    ),
    # C frames inside and outside.
    "native_all": Job(
        "pthread_cond_wait (libc.so.6)\nstd::condition_variable::wait (libstdc++.so.6.0.33)\n0x7caaa50b1a9b (?)\n@all_reduce\n@top\n@native_end",
        "communication",
    ),
    "native_python_loop": Job(
        "pthread_cond_wait (libc.so.6)\n@all_reduce\n@top\n@native_end",
        "application",
        "next_round (A/schedule.py:989)\n@top\n@native_end",
    ),
    "native_loader": Job(
        "sched_yield (libc.so.6)\n@all_reduce\n@top\n@native_end",
        "data",
        "pthread_cond_timedwait (libc.so.6)\n@loader\n@top\n@native_end",
        worker="read (libc.so.6)\n_io_FileIO_read (fileio.c:720)\npil_loader (S/torchvision/datasets/folder.py:250)\n__getitem__ (S/torchvision/datasets/folder.py:229)\n_worker_loop (S/torch/utils/data/_utils/worker.py:308)\n@forked",
        idle="poll (libc.so.6)\nselect_poll_poll (selectmodule.c.h:229)\n@idle\n_worker_loop (S/torch/utils/data/_utils/worker.py:275)\n@forked",
    ),
    "native_engine": Job(
        "pthread_cond_wait (libc.so.6)\n@backward\n@top\n@native_end\nThread:\npthread_cond_wait (libc.so.6)\ntorch::autograd::ReadyQueue::pop (libtorch_cpu.so)\nThread: pt_autograd_0\nncclGroupEnd (libnccl.so.2)\nclone3 (libc.so.6)",
        "communication",
    ),
    "native_launch": Job(
        "pthread_cond_wait (libc.so.6)\n@backward\n@top",
        "compute",
        "cuLaunchKernel (libcuda.so.1)\nforward (S/torch/nn/modules/linear.py:125)\n_call_impl (S/torch/nn/modules/module.py:1790)\n@top",
    ),
    # All in one collective, but not by one way.
    "other_way": Job("@extend", "communication", "@draft"),
    "two_ways": Job("@extend", "communication", "@draft", _three_eighths, blamed=False),
    "helper": Job(
        "@all_reduce\nreduce_dict (A/comm.py:30)\ntrain_step (A/train.py:150)\n@top",
        "communication",
        "@all_reduce\nreduce_dict (A/comm.py:30)\nevaluate (A/train.py:200)\n<module> (A/train.py:400)",
    ),
    "two_backwards": Job(
        "@backward\ngenerator (A/gan.py:70)\n@top",
        "communication",
        "@backward\ndiscriminator (A/gan.py:50)\n@top",
    ),
    "driver": Job(
        "@all_reduce\nforward (S/vllm/model_executor/models/llama.py:300)\nstart_worker_execution_loop (S/vllm/worker/worker_base.py:72)\n<module> (<string>:1)",
        "communication",
        "@all_reduce\nforward (S/vllm/model_executor/models/llama.py:300)\nstep (S/vllm/engine/llm_engine.py:1358)\nrun_engine_loop (S/vllm/engine/multiprocessing/engine.py:226)",
        _first,
        blamed=False,
    ),
    "source": Job(
        "@broadcast\nsync (A/utils.py:44)\n@top",
        "communication",
        "@broadcast\nsync (A/utils.py:41)\n@top",
        _first,
        blamed=False,
    ),
    "sources": Job(
        "@broadcast\n_broadcast (M/megatron/training/utils.py:300)\nget_batch_on_this_tp_rank (M/megatron/training/utils.py:380)\n@top",
        "communication",
        "@broadcast\n_broadcast (M/megatron/training/utils.py:300)\nget_batch_on_this_tp_rank (M/megatron/training/utils.py:340)\n@top",
        _eighths,
        blamed=False,
    ),
    "source_of_the_last_stage": Job(
        "@broadcast\n_aggregate_total_loss (S/deepspeed/runtime/pipe/engine.py:540)\ntrain_batch (S/deepspeed/runtime/pipe/engine.py:330)\n@top",
        "communication",
        "@broadcast\n_aggregate_total_loss (S/deepspeed/runtime/pipe/engine.py:528)\ntrain_batch (S/deepspeed/runtime/pipe/engine.py:330)\n@top",
        _last_eighth,
        blamed=False,
    ),
    "broadcast_on_another_line": Job(
        "@broadcast\nstep (A/train.py:160)\n@top", "communication", "@broadcast\nstep (A/train.py:150)\n@top"
    ),
    "broadcast_elsewhere": Job(
        "@broadcast\nnext_rate (A/schedule.py:44)\n@top",
        "communication",
        "@broadcast\nsave_best (A/best.py:41)\n<module> (A/train.py:402)",
        _first,
    ),
    # Compilers: whose lock, whose device.
    "stale_lock": Job("@baton", "compile"),
    "one_builds": Job("@baton", "compile", "@ninja", _first),
    "one_builds_on_each_node": Job("@baton", "compile", "@ninja", _eighths),
    "compiled_on_device": Job(
        "@broadcast\n@top",
        "compile",
        "synchronize (S/torch/cuda/__init__.py:1083)\n_make_launchers (S/torch/_inductor/runtime/triton_heuristics.py:646)\nprecompile (S/torch/_inductor/runtime/triton_heuristics.py:420)\nwait (S/torch/_inductor/async_compile.py:640)\ncompile_to_module (S/torch/_inductor/graph.py:2200)\n_fn (S/torch/_dynamo/eval_frame.py:838)\n@top",
        _three_eighths,
    ),
    "tuned_on_device": Job(
        "synchronize (S/torch/cuda/__init__.py:985)\ndo_bench (S/triton/testing.py:130)\nbenchmark_all_configs (S/torch/_inductor/runtime/triton_heuristics.py:900)\nrun (S/torch/_inductor/runtime/triton_heuristics.py:1200)\ncall (/tmp/torchinductor_me/4q/c4q.py:200)\n@top",
        "compile",
    ),
    # Imports are no work of the package that is imported.
    "import_reads": Job(
        "_store_based_barrier (S/torch/distributed/distributed_c10d.py:450)\n@top",
        "storage_io",
        "get_data (<frozen importlib._bootstrap_external>:1073)\nget_code (<frozen importlib._bootstrap_external>:979)\n@found",
    ),
    "import_loads": Job(
        "_store_based_barrier (S/torch/distributed/distributed_c10d.py:450)\n@top",
        "application",
        "_call_with_frames_removed (<frozen importlib._bootstrap>:241)\ncreate_module (<frozen importlib._bootstrap_external>:1176)\n@found",
    ),
    "import_of_a_compiler": Job(
        "get_data (<frozen importlib._bootstrap_external>:1073)\n<module> (S/torch/_dynamo/__init__.py:3)\n<module> (A/train.py:1)",
        "storage_io",
    ),
    # Norms are read from the device, which waits for the gradients of all.
    "norm": Job(
        "get_grad_norm_direct (S/deepspeed/runtime/zero/stage2.py:1512)\nstep (S/deepspeed/runtime/zero/stage2.py:1645)\n@top",
        "communication",
    ),
    "norm_of_one": Job(
        "@all_reduce\nget_grad_norm_direct (S/deepspeed/runtime/zero/stage_1_and_2.py:1722)\n@top",
        "compute communication",
        "mask_nan_or_inf_with_val_inplace (S/deepspeed/runtime/utils.py:830)\nget_grad_norm_direct (S/deepspeed/runtime/zero/stage_1_and_2.py:1725)\n@top",
    ),
    "gradients_parted": Job(
        "@zero_backward\npartition_grads (S/deepspeed/runtime/zero/stage3.py:1500)\n__reduce_and_partition_ipg_grads (S/deepspeed/runtime/zero/stage3.py:1309)",
        "communication",
    ),
    "parameters_gathered": Job(
        "@zero_backward\nall_gather_into_tensor (S/torch/distributed/distributed_c10d.py:2709)\n@c10d\nall_gather_coalesced (S/deepspeed/runtime/zero/partition_parameters.py:1205)\nfetch_sub_module (S/deepspeed/runtime/zero/partitioned_param_coordinator.py:385)",
        "communication",
    ),
    # Engines and actors that train within the job.
    "engine_workers": Job(
        "@parked",
        "compute",
        "build (S/vllm/v1/attention/backends/gdn_attn.py:307)\nexecute_model (S/vllm/v1/worker/gpu/model_runner.py:1816)\n@executor",
    ),
    "engine_idle": Job("@parked", "communication"),
    "stateful_loader": Job(
        "@all_reduce\n@top",
        "data",
        "wait (L/threading.py:359)\nget (L/queue.py:180)\n_try_get_data (S/torchdata/stateful_dataloader/stateful_dataloader.py:1150)\n@top",
        worker="read (S/botocore/response.py:100)\nshard (A/shards.py:60)\nfetch (S/torchdata/stateful_dataloader/worker.py:80)\n_worker_loop (S/torchdata/stateful_dataloader/worker.py:240)\n@forked",
        idle="@idle\n_worker_loop (S/torchdata/stateful_dataloader/worker.py:187)\n@forked",
    ),
    "actor_thread": Job(
        "@actor\nThread: TrainingThread(train)\n@all_reduce\ntrain (A/loop.py:95)\n@runner",
        "application",
        "@actor\nThread: TrainingThread(train)\nscore (A/loop.py:60)\ntrain (A/loop.py:90)\n@runner",
    ),
    "actor_session": Job(
        "@session\n@all_reduce\ntrain (A/loop.py:95)\n@session_run",
        "checkpoint",
        "@session\nsave (S/torch/serialization.py:600)\ntrain (A/loop.py:99)\n@session_run",
    ),
    "actor_threads_wait": Job(
        "@actor\nThread: TrainingThread(train)\n@all_reduce\ntrain (A/loop.py:95)\n@runner", "communication"
    ),
}

Frames = list[tuple[str, str, int, str | None]]  # function, file, line, library of a C frame

_LINE = re.compile(r"(?P<name>.+) \((?P<file>.+?)(?::(?P<line>\d+))?\)")


def threads(text: str) -> list[tuple[str | None, Frames]]:
    """Name and frames of each thread, the main one first."""
    found: list[tuple[str | None, Frames]] = [("MainThread", [])]
    for line in _lines(text):
        if line.startswith("Thread:"):
            found.append((line.removeprefix("Thread:").strip() or None, []))
        else:
            found[-1][1].append(_frame(line))
    return found


def _lines(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [one for line in lines for one in (_lines(PARTS[line[1:]]) if line.startswith("@") else [line])]


def _frame(line: str) -> tuple[str, str, int, str | None]:
    match = _LINE.fullmatch(line)
    assert match is not None, line
    file, native = match["file"], match["line"] is None or match["file"].endswith((".c", ".h"))
    for short, place in PLACES.items():
        if file.startswith(short):
            file = place + file.removeprefix(short)
    return match["name"], file, int(match["line"] or 0), "/usr/lib/libpython3.10.so" if native else None
