"""What the pages compute from a bundle, kept in memory: stored captures never change, nothing goes stale."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from snapshotter.bundle.reader import Bundle, open_bundle
from snapshotter.bundle.schema import Manifest
from snapshotter.bundle.store import BundleStore
from snapshotter.errors import BundleError, NotFound
from snapshotter.render import graph as graphs
from snapshotter.render.graph import Graph
from snapshotter.render.missing import Missing, of_manifest
from snapshotter.stacks.model import NodeAnswer
from snapshotter.web.merging import merge
from snapshotter.web.view.functions import Function, ProcessRow, SourcedStat, Stat, functions, processes
from snapshotter.web.view.stacks import Roster, processes_of, roster

T = TypeVar("T")


class Head(msgspec.Struct, frozen=True):
    """report.json without its statistics, which are most of it."""

    verdict: dict[str, Any]
    summary: dict[str, Any] = {}
    equivalence_classes: list[dict[str, Any]] = []
    process_infos: list[dict[str, Any]] = []

    def as_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "summary": self.summary,
            "equivalence_classes": self.equivalence_classes,
            "process_infos": self.process_infos,
        }


class _Stats(msgspec.Struct):
    function_stats: list[Stat] = []


class _SourcedStats(msgspec.Struct):
    function_stats: list[SourcedStat] = []


def _decode(data: bytes, wanted: type[T], capture_id: str) -> T:
    try:
        return msgspec.json.decode(data, type=wanted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"{capture_id}/report.json: not a report: {error}") from error


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
        """The report's verdict, summary, classes and processes; None where the analysis failed."""
        return self._once(capture_id, "head", lambda: self._head(capture_id))

    def functions(self, capture_id: str) -> tuple[Function, ...]:
        """The function statistics. Raises NotFound where the analysis failed."""
        return self._once(capture_id, "functions", lambda: self._functions(capture_id))

    def roster(self, capture_id: str) -> Roster:
        """Who can be chosen in the Stacks tab, with or without an analysis."""
        return self._once(capture_id, "roster", lambda: self._roster(capture_id))

    def processes(self, capture_id: str) -> tuple[ProcessRow, ...]:
        return self._once(capture_id, "processes", lambda: processes(self.head(capture_id) or {}))

    def graph(self, capture_id: str) -> Graph:
        return self._once(capture_id, "graph", lambda: self._graph(capture_id))

    def missing(self, capture_id: str) -> tuple[Missing, ...]:
        """What was not captured, where and why."""
        return self._once(capture_id, "missing", lambda: self._missing(capture_id))

    def graph_json(self, capture_id: str) -> bytes:
        return self._once(
            capture_id,
            "graph_json",
            lambda: msgspec.json.encode(graphs.to_data(self.graph(capture_id))),
        )

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

    def _graph(self, capture_id: str) -> Graph:
        manifest = self.manifest(capture_id)
        return merge(manifest, self.missing(capture_id), lambda name: self._store.get(capture_id, name))

    def _missing(self, capture_id: str) -> tuple[Missing, ...]:
        """From the manifest alone, and of nodes that did not answer the ranks that should be there."""
        manifest, homes = self.manifest(capture_id), {}
        for entry in manifest.nodes:
            if entry.outcome != "ok":
                for rank in self.bundle(capture_id).answer(entry).expected_ranks:
                    homes[rank] = entry.node
        return of_manifest(manifest.targets, manifest.nodes, self.head(capture_id), homes)

    def _functions(self, capture_id: str) -> tuple[Function, ...]:
        data = self.bundle(capture_id).report_bytes()
        stats = _decode(data, _Stats, capture_id).function_stats
        if any(one.ranks is None for one in stats):
            return functions(_decode(data, _SourcedStats, capture_id).function_stats)
        return functions(stats)

    def _roster(self, capture_id: str) -> Roster:
        head = self.head(capture_id)
        return roster(head if head is not None else processes_of(self.manifest(capture_id).targets))

    def _head(self, capture_id: str) -> dict[str, Any] | None:
        try:
            data = self.bundle(capture_id).report_bytes()
        except NotFound:
            return None
        return _decode(data, Head, capture_id).as_dict()

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
            if what not in kept:
                kept[what] = compute()
            with self._lock:
                self._computing.pop((capture_id, what), None)
            value: T = kept[what]
            return value
