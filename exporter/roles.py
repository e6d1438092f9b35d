"""What a process of a training job does, from its command line, its name, its threads and its parent.

Pure functions. Sources: torch names the main thread of a DataLoader worker `pt_data_worker` and that of its
agent `pt_elastic` (2.6 and 2.7), and the threads of a process group `pt_gloo_runloop` and `pt_nccl_…`;
CPython's multiprocessing starts a child anew with `--multiprocessing-fork`; a forked child keeps its parent's
command line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import PurePath
from typing import Literal

Role = Literal["trainer", "dataloader", "launcher", "checkpoint", "other"]

_PYTHON = re.compile(r"\.?(python|pypy)[\d.]*[td]?(-wrapped)?\Z")
_LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.launch",
    "deepspeed.launcher.runner",
    "horovod.runner.launch",
    "colossalai.cli",
    "composer.cli.launcher",
    "determined.launch",
)
_LAUNCHER_SCRIPTS = (
    "torchrun",
    "accelerate",
    "accelerate-launch",
    "deepspeed",
    "ds",
    "horovodrun",
    "colossalai",
    "composer",
    "ipexrun",
    "fabric",
    "lightning",
)
_LAUNCHER_PROGRAMS = (
    "mpirun",
    "mpiexec",
    "mpirun.openmpi",
    "mpirun.mpich",
    "mpiexec.openmpi",
    "mpiexec.mpich",
    "mpiexec.hydra",
    "hydra_pmi_proxy",
    "hydra_bstrap_proxy",
    "orterun",
    "orted",
    "prterun",
    "prted",
    "prte",
    "mpirun_rsh",
    "mpispawn",
    "jsrun",
    "jsmd",
    "flux-shell",
    "aprun",
    "srun",
    "slurmstepd",
    "raylet",
)
_HELPER_MODULES = (
    "torch._inductor.compile_worker",
    "wandb",
    "tensorboard",
    "tensorboard.main",
    "debugpy.adapter",
)
_HELPER_SCRIPTS = ("wandb", "tensorboard")
_HELPER_PATHS = ("torch/_inductor/compile_worker", "debugpy/adapter")
_HELPER_CODE = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
_CHECKPOINT = re.compile(
    r"(\.distcp|\.safetensors|\.ckpt|\.pt|\.pth|\.pt\.tmp|\.nemo|_states\.pt)\Z|/(?:\w*checkpoints?|ckpts?)(?:/|[-_]\w)",
    re.IGNORECASE,
)
_GROUP_THREADS = ("pt_gloo", "pt_nccl")


def is_python_name(path: str) -> bool:
    """Whether a program's path names a Python interpreter."""
    return bool(_PYTHON.match(PurePath(path).name))


def is_launcher(argv: Sequence[str], comm: str) -> bool:
    """Whether a process starts ranks: torchrun's agent, mpirun, srun and their like."""
    if comm == "pt_elastic":
        return True
    if not argv:
        return comm in _LAUNCHER_PROGRAMS
    program = PurePath(argv[0].split(" ", 1)[0].rstrip(":")).name
    if program in _LAUNCHER_PROGRAMS or program in _LAUNCHER_SCRIPTS:
        return True
    if not is_python_name(program):
        return False
    module = python_module(argv)
    if module is not None:
        return any(module == one or module.startswith(f"{one}.") for one in _LAUNCHER_MODULES)
    script = python_script(argv)
    return script is not None and PurePath(script).name in _LAUNCHER_SCRIPTS


def python_module(argv: Sequence[str]) -> str | None:
    """The module of `python … -m MODULE …`; None where another way was chosen."""
    index = _first_argument(argv)
    if index is None or not argv[index].startswith("-m"):
        return None
    if len(argv[index]) > 2:
        return argv[index][2:]
    return argv[index + 1] if index + 1 < len(argv) else None


def python_script(argv: Sequence[str]) -> str | None:
    """The script of `python … SCRIPT …`; None where another way was chosen."""
    index = _first_argument(argv)
    return None if index is None or argv[index].startswith("-") else argv[index]


def is_multiprocessing_child(argv: Sequence[str]) -> bool:
    """Whether multiprocessing started this process anew (spawn or forkserver), not by a plain fork."""
    return "--multiprocessing-fork" in argv or any(
        "multiprocessing.forkserver import main" in one for one in argv
    )


def is_helper_program(argv: Sequence[str]) -> bool:
    """Whether a command line is of a kind that serves a trainer and never trains: trackers, compilers."""
    module, script = python_module(argv), python_script(argv)
    if module is not None:
        return module in _HELPER_MODULES
    if script is not None:
        return PurePath(script).name in _HELPER_SCRIPTS or any(path in script for path in _HELPER_PATHS)
    return any(name in one for one in argv for name in _HELPER_CODE)


def is_ray_worker(argv: Sequence[str]) -> bool:
    """Whether this is a worker of Ray Train; Ray writes the actor's class over the command line."""
    return bool(argv) and re.match(r"ray::(?:\w*TrainWorker|RayTrainWorker)\b", argv[0]) is not None


def is_torch_thread(name: str) -> bool:
    """Whether torch gave a thread this name."""
    return name.startswith("pt_")


def has_process_group(threads: Collection[str]) -> bool:
    """Whether torch's threads of a process group (gloo or NCCL) run in a process with these thread names."""
    return any(name.startswith(_GROUP_THREADS) for name in threads)


def is_checkpoint_file(path: str) -> bool:
    """Whether a file being written is, by its name or folder, part of a checkpoint."""
    return _CHECKPOINT.search(path) is not None


def helper_role(
    argv: Sequence[str],
    comm: str,
    owner_argv: Sequence[str],
    *,
    python: bool,
    process_group: bool,
    writes_checkpoint: bool,
    named_workers: bool,
    lasting: bool,
) -> Role:
    """The role of a process below a trainer whose command line is `owner_argv`.

    `process_group`: it has threads of a process group, as the writer of torch's asynchronous checkpoints has,
    and a DataLoader worker has not. `named_workers`: it would be named if it were one, as a sibling is.
    `lasting`: it is no child that is about to exec, whose command line is still that of its parent.
    """
    if comm == "pt_data_worker":
        return "dataloader"
    if not python or is_helper_program(argv):
        return "other"
    if process_group or writes_checkpoint:
        return "checkpoint"
    forked = lasting and tuple(argv) == tuple(owner_argv)
    return "dataloader" if (forked or is_multiprocessing_child(argv)) and not named_workers else "other"


def _first_argument(argv: Sequence[str]) -> int | None:
    """Index of what a Python interpreter runs: `-m`, `-c`, or a script; its own options are passed over."""
    index = 1
    while index < len(argv):
        one = argv[index]
        if not one.startswith("-") or one == "-" or one.startswith(("-m", "-c")):
            return index
        index += 2 if one in ("-W", "-X", "--check-hash-based-pycs") else 1
    return None
