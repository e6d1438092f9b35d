"""What a process of a training job does, from its command line, its name and its place in the process tree.

Pure functions. Sources: torch names the main thread of a DataLoader worker `pt_data_worker` (2.6) and that of
its agent `pt_elastic` (2.7); CPython's multiprocessing starts children with `--multiprocessing-fork`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Literal

Role = Literal["trainer", "dataloader", "launcher", "checkpoint", "other"]

_PYTHON = re.compile(r"(python|pypy)[\d.]*(t|d)?\Z")
_LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.launcher",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.launch",
    "deepspeed.launcher.runner",
    "horovod.runner",
    "colossalai.cli",
)
_LAUNCHER_SCRIPTS = (
    "torchrun",
    "accelerate",
    "accelerate-launch",
    "deepspeed",
    "horovodrun",
    "colossalai",
    "composer",
)
_LAUNCHER_PROGRAMS = (
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "hydra_pmi_proxy",
    "hydra_bstrap_proxy",
    "orterun",
    "orted",
    "prterun",
    "prted",
    "srun",
    "slurmstepd",
    "raylet",
)
_HELPER_MODULES = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "torch._inductor.compile_worker",
    "wandb",
    "tensorboard",
    "debugpy",
)


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
        return module.startswith(_LAUNCHER_MODULES)
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


def helper_role(argv: Sequence[str], comm: str, owner_argv: Sequence[str]) -> Role:
    """The role of a process below a trainer whose command line is `owner_argv`."""
    if comm == "pt_data_worker":
        return "dataloader"
    if any(name in " ".join(argv) for name in _HELPER_MODULES):
        return "other"
    if tuple(argv) == tuple(owner_argv) or is_multiprocessing_child(argv):
        return "dataloader"
    return "other"


def _first_argument(argv: Sequence[str]) -> int | None:
    """Index of what a Python interpreter runs: `-m`, `-c`, or a script; its own options are passed over."""
    index = 1
    while index < len(argv):
        one = argv[index]
        if not one.startswith("-") or one == "-" or one.startswith(("-m", "-c")):
            return index
        index += 2 if one in ("-W", "-X", "--check-hash-based-pycs") else 1
    return None
