"""What the process and identity collectors print for a fixture node, word for word; promtool reads it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from exporter.collectors.identity import IdentityCollector
from exporter.collectors.process import ProcessCollector
from exporter.procfs import ProcFS
from exporter.ranks import RankFinder
from exporter.runner import Runner
from exporter.sampler import ProcessSampler

GOLDEN = Path(__file__).parents[1] / "golden" / "process_metrics.txt"


def exposition(proc_tree: Any) -> str:
    """All families of a node with a torchrun job in disk sleep and two ranks that claim one number."""
    proc_tree.load("torchrun.json")
    liar = {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": 'say "hi"\\n', "CUDA_VISIBLE_DEVICES": "3"}
    for pid in (900, 910):
        proc_tree.process(pid, argv=["/usr/bin/python3", "x.py"], environ=liar)
    stats = {"rchar": 5000, "wchar": 600, "read_bytes": 4096, "write_bytes": 512}
    environ = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "stuck"}
    proc_tree.process(
        950,
        argv=["/usr/bin/python3", "t.py"],
        environ=environ | {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "stuck-worker-0"},
        state="D",
        wchan="rpc_wait_bit_killable",
        cpu=(250, 50),
        switches=(40, 2),
        io=stats,
        delay=150,
        cgroup="/job",
    )
    proc_tree.file("sys/kernel/task_delayacct", "1\n")
    for name in ("pressure/io", "cgroup/job/io.pressure"):
        proc_tree.file(name, "some avg10=1.00 avg60=0 avg300=0 total=2500000\n")
    now = 1_700_003_600.0
    procfs = ProcFS(proc_tree.root, cgroup_root=proc_tree.root / "cgroup", ticks=100)
    finder = RankFinder(procfs, node="node-x", now=lambda: now)
    sampler = ProcessSampler(procfs, lambda: finder.latest, now=lambda: now)
    finder.scan()
    for _ in range(40):
        now += 1.0
        sampler.poll()
    registry = CollectorRegistry()
    runner = Runner((ProcessCollector(lambda: sampler.latest), IdentityCollector(lambda: finder.latest)))
    registry.register(runner)
    text = generate_latest(registry).decode()
    runner.close()
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if "hangscope_exporter_" not in line)


def test_exposition_is_as_recorded(proc_tree: Any) -> None:
    text = exposition(proc_tree)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_promtool_finds_nothing_to_say(proc_tree: Any) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, "install prometheus"
    check = subprocess.run(
        [promtool, "check", "metrics"], input=exposition(proc_tree), capture_output=True, text=True
    )
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")
