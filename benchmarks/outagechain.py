"""The chain whose parts can be taken away: programs, an agent, a job to hang, a disk to fill."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.watched import Pager, WatchedChain
from standalone import processes
from standalone.chain import Settings, get_json

PREFIX = "outage-"  # of every job here
NODE = "node-1"  # what agent and snapshotter call this node
DISK_BYTES = 48 << 20  # with less than 16 MiB left, nothing more is accepted
_SPARE = """
import os, sys, time
from snapshotter import cli
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
sys.exit(cli.main(sys.argv[2:]))
"""
_RANK = Path(__file__).resolve().parent / "soaking" / "rank.py"


class OutageChain(WatchedChain):
    """The chain, and an agent; each program can be killed and started again."""

    def __init__(self, settings: Settings, pager: Pager, data: Path | None = None) -> None:
        """`data`: the snapshotter's folder, where it is not that of the chain."""
        super().__init__(settings, pager, PREFIX)
        self._data = data
        self._gate = settings.folder / "agent.gate"
        self.agent_port = _free_port()
        settings.snapshotter["prometheus"] = {"url": self.prometheus_url}
        settings.snapshotter["agents"] = {
            "nodes": [f"{NODE}=127.0.0.1:{self.agent_port}"],
            "token_file": str(settings.folder / "webhook.token"),
        }

    def take_away(self, name: str) -> None:
        self._children[name].kill()
        self._children.pop(name).wait()
        if name == "agent":
            self._start_spare()

    def bring_back(self, name: str) -> None:
        if (
            name == "agent"
        ):  # it is waited for by the clock, not for as long as a busy machine takes to start it
            self._gate.touch()
            self.adopt(self._spare)
        else:
            self._children[name] = processes.start(self._commands()[name], log=self.log(name))

    def _start_spare(self) -> None:
        """An agent that has read its code and begins with the gate's file."""
        command = self._commands()["agent"]
        place = command.index("agent") - 1
        spare = [*command[:place], sys.executable, "-c", _SPARE, str(self._gate), *command[place + 1 :]]
        self._spare = processes.start(spare, log=self.log("agent"))

    def _commands(self) -> dict[str, list[str]]:
        commands = super()._commands()
        commands["prometheus"].append("--rules.alert.resend-delay=5s")
        called = ["env", f"NODE_NAME={NODE}"]
        served = commands["snapshotter"]
        if self._data is not None:
            served = [one for one in served if not one.startswith("--storage.path=")]
            served.append(f"--storage.path={self._data}")
        commands["snapshotter"] = [*called, *served]
        commands["agent"] = [
            *called,
            *served[: served.index("serve")],
            "agent",
            f"--config.file={self.settings.folder / 'agent.yml'}",
            f"--web.listen-address=127.0.0.1:{self.agent_port}",
            f"--web.token-file={self.settings.folder / 'webhook.token'}",
        ]
        return commands

    def _write_configuration(self) -> None:
        super()._write_configuration()
        (self.settings.folder / "agent.yml").write_text("{}\n")

    def _alertmanager(self) -> dict[str, Any]:
        """Intervals of minutes cut to seconds."""
        text = json.dumps(super()._alertmanager())
        return dict(json.loads(text.replace('"10s"', '"1s"').replace('"1m"', '"5s"')))

    def fires(self, job_id: str) -> bool:
        """Whether Prometheus sees this job hang."""
        return bool(self.query(f'ALERTS{{alertname="TrainingHang",alertstate="firing",job_id="{job_id}"}}'))

    def captures(self, job_id: str) -> list[dict[str, Any]]:
        """Those that alerts asked for. Raises OSError."""
        found = get_json(f"{self.snapshotter_url}/api/v1/captures?job_id={job_id}")["captures"]
        return [one for one in found if one["trigger"] == "alert"]


class Job:
    """Two ranks that iterate until they are stopped."""

    def __init__(self, job_id: str, folder: Path) -> None:
        self.job_id = job_id
        folder = folder / job_id
        folder.mkdir(parents=True)
        run = {
            "first_iteration": 1,
            "iteration_seconds": 0.2,
            "startup_seconds": 0,
            "steps": [],
            "end": "killed",
        }
        orders = {"run": run, "logger": 0, "shared_log": True, "folder": str(folder)}
        environment = {"TORCHELASTIC_RUN_ID": job_id, "WORLD_SIZE": "2", "PATH": os.defpath}
        self._ranks = [
            processes.start(
                [sys.executable, "-S", str(_RANK), json.dumps(orders)],
                log=folder / "stray.log",
                environment=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(2)
        ]

    def hang(self) -> None:
        for one in self._ranks:
            one.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        for one in self._ranks:
            one.kill()
            one.wait()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of a few MiB. Raises CalledProcessError where it may not be mounted."""
    path = folder / "disk"
    path.mkdir()
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    subprocess.run(
        [*sudo, "mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=1777", "outages", str(path)],
        check=True,
    )
    try:
        yield path
    finally:
        subprocess.run([*sudo, "umount", "--lazy", str(path)], check=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
