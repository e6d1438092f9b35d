"""What the pages compute from a bundle, kept in memory: stored captures never change, nothing goes stale."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from snapshotter import extracts
from snapshotter.bundle.reader import Bundle, open_bundle
from snapshotter.bundle.schema import Manifest
from snapshotter.bundle.store import BundleStore
from snapshotter.errors import BundleError, NotFound
from snapshotter.extracts import Extract
from snapshotter.extracts.head import missing
from snapshotter.extracts.rows import FunctionRow, ProcessRow
from snapshotter.render import graph as graphs
from snapshotter.render.graph import Graph
from snapshotter.render.missing import Missing
from snapshotter.stacks.model import NodeAnswer
from snapshotter.web.view.functions import Function, functions
from snapshotter.web.view.stacks import Roster, roster

T = TypeVar("T")


class Derived:
    """Looks up parts of bundles; keeps the last ones. Methods raise NotFound and BundleError."""

    def __init__(self, store: BundleStore, *, captures: int = 8) -> None:
        self._store = store
        self._captures = captures
        self._kept: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._computing: dict[tuple[str, str], threading.Lock] = {}

    def bundle(self, capture_id: str) -> Bundle:
        return open_bundle(self._store, capture_id)

    def manifest(self, capture_id: str) -> Manifest:
        return self._once(capture_id, "manifest", lambda: self.bundle(capture_id).manifest())

    def head(self, capture_id: str) -> dict[str, Any] | None:
        """The report's verdict, summary, rarest classes and culprits; None where the analysis failed."""
        report: dict[str, Any] | None = self._head(capture_id)["report"]
        return report

    def classes(self, capture_id: str) -> int:
        """How many classes of equal stacks there are in all."""
        return int(self._head(capture_id)["classes"])

    def missing(self, capture_id: str) -> tuple[Missing, ...]:
        """What was not captured, where and why."""
        return self._once(capture_id, "missing", lambda: missing(self._head(capture_id)))

    def functions(self, capture_id: str) -> tuple[Function, ...]:
        """The function statistics; none where the analysis failed."""
        return self._once(
            capture_id,
            "functions",
            lambda: functions(self._extract(capture_id, "functions", list[FunctionRow])),
        )

    def processes(self, capture_id: str) -> list[ProcessRow]:
        return self._once(
            capture_id, "processes", lambda: self._extract(capture_id, "processes", list[ProcessRow])
        )

    def roster(self, capture_id: str) -> Roster:
        """Who can be chosen in the Stacks tab, with or without an analysis."""
        return self._once(capture_id, "roster", lambda: roster(self.processes(capture_id)))

    def graph_json(self, capture_id: str) -> bytes:
        return self._once(
            capture_id, "graph_json", lambda: bytes(self._extract(capture_id, "graph", msgspec.Raw))
        )

    def graph(self, capture_id: str) -> Graph:
        return self._once(capture_id, "graph", lambda: self._graph(capture_id))

    def answer(self, capture_id: str, node: str) -> NodeAnswer:
        """What one node answered. Raises NotFound for a node that was not asked."""
        entry = next((one for one in self.manifest(capture_id).nodes if one.node == node), None)
        if entry is None:
            raise NotFound(f"the capture has no node {node}")
        return self.bundle(capture_id).answer(entry)

    def nccl_text(self, capture_id: str, file: str) -> str:
        """The RAS reply of one node, byte for byte but for what is not UTF-8."""
        try:
            return self._store.get(capture_id, file).decode("utf-8", "replace")
        except OSError as error:
            raise BundleError(f"{capture_id}/{file}: cannot be read: {error}") from error

    def forget(self, capture_id: str) -> None:
        with self._lock:
            self._kept.pop(capture_id, None)

    def _head(self, capture_id: str) -> dict[str, Any]:
        return self._once(capture_id, "head", lambda: self._extract(capture_id, "head", dict[str, Any]))

    def _graph(self, capture_id: str) -> Graph:
        data = msgspec.json.decode(self.graph_json(capture_id))
        return graphs.from_data(data, self.manifest(capture_id).job_id, self.missing(capture_id))

    def _extract(self, capture_id: str, what: Extract, wanted: type[T]) -> T:
        """From the bundle, or made of the rest of it where it has none that can be read."""
        try:
            return msgspec.json.decode(self._store.get(capture_id, extracts.file(what)), type=wanted)
        except (NotFound, msgspec.DecodeError, UnicodeDecodeError):
            bundle, manifest = self.bundle(capture_id), self.manifest(capture_id)
            try:
                report: dict[str, Any] | None = bundle.report()
            except NotFound:
                report = None
            return msgspec.json.decode(extracts.make(what, bundle, manifest, report), type=wanted)

    def _once(self, capture_id: str, what: str, compute: Callable[[], T]) -> T:
        """The value, computed once however many ask for it at the same time."""
        with self._lock:
            kept = self._kept.setdefault(capture_id, {})
            self._kept.move_to_end(capture_id)
            while len(self._kept) > self._captures:
                self._kept.popitem(last=False)
            if what in kept:
                known: T = kept[what]
                return known
            computing = self._computing.setdefault((capture_id, what), threading.Lock())
        with computing:
            try:
                if what not in kept:
                    kept[what] = compute()
            finally:
                with self._lock:
                    self._computing.pop((capture_id, what), None)
            value: T = kept[what]
            return value
