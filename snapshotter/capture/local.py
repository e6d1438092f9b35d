"""The capture of this node as an order asks for it: what the agent does, and a service that is alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from exporter.procfs import ProcFS
from exporter.ranks import RankFinder, Scan
from snapshotter.capture import rasfacts
from snapshotter.capture.agent import Memory
from snapshotter.capture.facts import reader
from snapshotter.capture.node import Progress, capture_native, capture_node
from snapshotter.capture.pyspy import PySpy
from snapshotter.capture.rasfacts import RasFacts
from snapshotter.capture.wire import Order
from snapshotter.config import CaptureConfig
from snapshotter.stacks.model import NodeAnswer


@dataclass(frozen=True, slots=True)
class LocalNode:
    """What it takes to capture this node; one for the life of a program, so that it remembers."""

    node: str
    procfs: ProcFS
    finder: RankFinder
    memory: Memory
    pyspy: PySpy
    settings: Callable[[], CaptureConfig]

    def find(self) -> Scan:
        """The training processes now; they are remembered."""
        scan = self.finder.scan()
        self.memory.note(scan)
        return scan

    def capture(
        self,
        order: Order,
        progress: Callable[[Progress], None] = lambda step: None,
        *,
        pids: Sequence[int] = (),
    ) -> NodeAnswer:
        """Never raises for what it finds. `pids`: the trees below these, instead of a job."""
        settings = self.settings()
        if order.native_pids:
            return capture_native(
                self.find,
                self.procfs,
                self.pyspy,
                node=self.node,
                job_id=order.job_id or None,
                wanted=order.native_pids,
                pids=pids,
                deadline=min(order.deadline, settings.node_timeout),
            )
        return capture_node(
            self.find,
            self.procfs,
            self.pyspy,
            node=self.node,
            job_id=order.job_id or None,
            pids=pids,
            interval=order.interval,
            at_once=settings.processes_at_once,
            deadline=min(order.deadline, settings.node_timeout),
            native_frames=order.native_frames,
            remembered=self.memory.ranks,
            ask_nccl=self._ask_nccl if order.ask_nccl and settings.ask_nccl and not pids else None,
            progress=progress,
        )

    def _ask_nccl(self, scan: Scan, job_id: str) -> RasFacts:
        return rasfacts.ask(
            self.procfs, scan, job_id, unsafe_versions=self.settings().ask_unsafe_nccl_versions
        )


def local_node(
    node: str,
    procfs: ProcFS,
    settings: Callable[[], CaptureConfig],
    *,
    now: Callable[[], float] = time.time,
) -> LocalNode:
    """This node, named `node`. Raises PySpyMissing."""
    return LocalNode(
        node=node,
        procfs=procfs,
        finder=RankFinder(procfs, node=node, job_id=settings().job_id, now=now),
        memory=Memory(now=now),
        # py-spy sees the pids of this process, whatever `procfs` is of.
        pyspy=reader(ProcFS(), timeout=settings().process_timeout),
        settings=settings,
    )
