"""One fault: its job is started, waited for until the fault is in effect, captured, analysed and compared."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
import socket
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from exporter.procfs import ProcFS, Unreadable
from snapshotter import oneshot
from snapshotter.config import CaptureConfig, Config
from snapshotter.oneshot import Wanted
from snapshotter.stacks import rankset
from standalone import processes
from standalone.chain import ROOT
from tests.faults.catalogue import Fault
from tests.faults.signs import Signs
from tests.faults.warm import Warm

NODE = "gpu-node-1"
SAMPLE_INTERVAL = 2.0  # seconds
DEADLINE = 180.0
STILL = 0.7  # seconds without a new iteration of any rank
_CLAIMS = ("SLURM_", "OMPI_", "PMI", "TORCHELASTIC_", "RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "MASTER_")


class NoEffect(Exception):
    """The job did not get as far as its fault."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the verdict said of one fault, against its truth."""

    fault: Fault
    verdict: dict[str, Any]
    seconds: float  # from the begin of the capture to the verdict

    @property
    def found(self) -> rankset.RankSet:
        return rankset.parse(self.verdict["culprit_ranks"])

    @property
    def truth(self) -> rankset.RankSet:
        return rankset.parse(self.fault.culprits)

    @property
    def precision(self) -> float:
        """Part of the ranks named that are to blame."""
        return (self.found & self.truth).bit_count() / self.found.bit_count() if self.found else 1.0

    @property
    def recall(self) -> float:
        """Part of the ranks to blame that are named."""
        return (self.found & self.truth).bit_count() / self.truth.bit_count() if self.truth else 1.0

    @property
    def culprits_right(self) -> bool:
        return self.found == self.truth and self.verdict["not_captured"] == self.fault.not_captured

    @property
    def cause_right(self) -> bool:
        return self.verdict["cause"] in self.fault.causes

    @property
    def scope_right(self) -> bool:
        open_scope = {"undetermined"} if self.verdict["hung"] is None and not self.fault.hung else set()
        return self.verdict["scope"] in {self.fault.scope} | open_scope

    @property
    def hung_right(self) -> bool:
        """Called hung if it is; a look-alike may be left open, but not be called hung."""
        return (self.verdict["hung"] is True) == self.fault.hung

    @property
    def false_alarm(self) -> bool:
        return self.verdict["hung"] is True and not self.fault.hung

    @property
    def right(self) -> bool:
        return self.culprits_right and self.cause_right and self.scope_right and self.hung_right


def run(fault: Fault, folder: Path, warm: Warm) -> Outcome:
    """Run the fault in a new `folder`, which then holds `log`, `job/` and `bundle/`. Raises NoEffect.

    Ends every process below this one, but for `warm`.
    """
    signs = Signs.create(folder / "job", fault.ranks)
    port = _free_port()
    run_id = f"{fault.name}-{uuid.uuid4().hex[:8]}"
    job_id = run_id if fault.launcher == "torchrun" else f"{NODE}:{port}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_CLAIMS)}
    environment |= {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    log, command = folder / "log", _command(fault, signs.folder, run_id, port)
    if fault.launcher == "fork":
        pid = warm.start(command, log=log, environment=environment)
    else:
        pid = processes.start(command, log=log, environment=environment, folder=ROOT).pid
    try:
        _wait_for_effect(fault, signs, pid, log)
        return _capture(fault, job_id, folder / "bundle")
    finally:
        _end_all_but(warm.pid)


def _end_all_but(kept: int) -> None:
    """What is killed may leave children behind, which then are ours."""
    while below := set(processes.descendants(os.getpid())) - {kept}:
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in below:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _command(fault: Fault, job: Path, run_id: str, port: int) -> list[str]:
    """The command that launches the job; of a job that `warm` starts, its arguments."""
    arguments = [fault.name, f"--module={fault.module}", f"--folder={job}", f"--ranks={fault.ranks}"]
    program = ["-m", "tests.faults.job", *arguments]
    torchrun = [f"--nproc-per-node={fault.ranks}", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    accelerate = [
        "--cpu",
        f"--num_processes={fault.ranks}",
        "--num_machines=1",
        f"--main_process_port={port}",
    ]
    present = rankset.members(rankset.span(0, fault.ranks - 1) & ~rankset.parse(fault.absent))
    match fault.launcher:
        case "torchrun":
            return [sys.executable, "-m", "torch.distributed.run", *torchrun, f"--rdzv-id={run_id}", *program]
        case "mpirun":
            return ["mpirun", "--oversubscribe", "-n", str(fault.ranks), sys.executable, *program]
        case "accelerate":
            return [str(Path(sys.executable).parent / "accelerate"), "launch", *accelerate, *program]
        case "fork":
            return arguments
        case "shell":
            rank = f"RANK=$rank LOCAL_RANK=$rank WORLD_SIZE={fault.ranks} LOCAL_WORLD_SIZE={fault.ranks}"
            each = f"{rank} {shlex.join([sys.executable, *program])} &"
            return ["sh", "-c", f"for rank in {' '.join(map(str, present))}; do {each} done; wait"]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _wait_for_effect(fault: Fault, signs: Signs, launcher: int, log: Path) -> None:
    """Until all that strike have struck and, for a hang, nobody begins an iteration any more."""
    everyone = rankset.fold(rankset.span(0, fault.ranks - 1))
    wanted = set(rankset.members(rankset.parse(fault.struck or fault.culprits or everyone)))
    deadline = time.monotonic() + DEADLINE
    seen, since = (signs.beats(), signs.struck()), time.monotonic()
    while True:
        now = time.monotonic()
        if (signs.beats(), signs.struck()) != seen:
            seen, since = (signs.beats(), signs.struck()), now
        if wanted <= seen[1] and (not fault.hung or now - since >= STILL):
            return
        if now > deadline or not _lives(launcher):
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            missing = sorted(wanted - seen[1])
            raise NoEffect(f"{fault.name}: ranks {missing} never struck, iterations {seen[0]}\n{tail}")
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    stat = ProcFS().stat(pid)
    return not isinstance(stat, Unreadable) and stat.state not in "ZX"


def _capture(fault: Fault, job_id: str, bundle: Path) -> Outcome:
    settings = Config(capture=CaptureConfig(sample_interval=SAMPLE_INTERVAL))  # type: ignore[arg-type]
    said = io.StringIO()
    started = time.monotonic()
    status = oneshot.run(
        Wanted(output=bundle, job_id=job_id),
        settings,
        node=NODE,
        procfs=ProcFS(),
        read_token=lambda path: "",
        out=io.StringIO(),
        err=said,
    )
    seconds = time.monotonic() - started
    if status != 0:
        raise NoEffect(f"{fault.name}: {said.getvalue()}")
    report = msgspec.json.decode((bundle / "report.json").read_bytes())
    return Outcome(fault, report["verdict"], seconds)
