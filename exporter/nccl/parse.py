"""A RAS answer of either form, understood; and as the JSON object that `check-nccl` prints."""

from __future__ import annotations

from typing import Any

from exporter.nccl.model import Communicator, RasProcess, RasRank, RasReport, Span
from exporter.nccl.ras_json import find_json, parse_json
from exporter.nccl.ras_text import parse_text


class Unread(Exception):
    """An answer that could not be read for a reason that is not in it."""


def parse(raw: bytes | bytearray) -> RasReport:
    """Understand all bytes of an answer, handshake lines included. Never raises on any input."""
    if find_json(raw) is not None:
        return parse_json(raw)
    return parse_text(raw.decode("utf-8", "replace"))


def _number_or_range(value: Span | None) -> int | str | None:
    if value is None:
        return None
    return value.low if value.low == value.high else str(value)


def _rank(rank: RasRank) -> dict[str, Any]:
    found: dict[str, Any] = {"rank": rank.rank, "gpu": rank.gpu, "pid": rank.pid, "node": rank.node}
    return found if rank.nvml is None else found | {"nvml": rank.nvml}


def _process(process: RasProcess) -> dict[str, Any]:
    found: dict[str, Any] = {"pid": process.pid, "node": process.node, "gpus": list(process.gpus)}
    return found | {"nvml": list(process.nvml)} if process.nvml else found


def _mismatches(one: Communicator) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if one.statuses is not None:
        shares = [
            {"status": share.value, "count": share.count, "ranks": [_rank(rank) for rank in share.ranks]}
            for share in one.statuses.shares
        ]
        found.append({"hash": one.hash, "group": one.group, "kind": "status", "values": shares})
    for launch in one.launches:
        values = [
            {"launched": part.launched, "count": part.count, "ranks": [_rank(rank) for rank in part.ranks]}
            for part in launch.shares
        ]
        found.append(
            {
                "hash": one.hash,
                "group": one.group,
                "kind": "launches",
                "op": launch.op,
                "lag": launch.lag,
                "values": values,
            }
        )
    return found


def to_json(report: RasReport) -> dict[str, Any]:
    """The object of `check-nccl`: numbers as numbers, a figure that varies as `"3-4"`, hashes 16 digits."""
    summary = report.summary
    return {
        "nccl_version": report.nccl_version,
        "format": report.format,
        "complete": report.complete,
        "summary": summary
        and {
            "nodes": summary.nodes,
            "processes": summary.processes,
            "gpus": summary.gpus,
            "processes_per_node": _number_or_range(summary.processes_per_node),
            "gpus_per_process": _number_or_range(summary.gpus_per_process),
            "cuda_runtime_version": report.cuda_runtime,
            "cuda_driver_version": report.cuda_driver,
            "collection_seconds": report.collection_seconds,
            "timeouts": report.timeouts,
        },
        "communicators": [
            {
                "group": group.number,
                "comms": group.communicators,
                "nodes_per_comm": group.nodes,
                "ranks_per_node": _number_or_range(group.ranks_per_node),
                "ranks_per_comm": group.size,
                "ranks_in_group": group.ranks,
                "status": group.status,
                "errors": list(group.errors),
            }
            for group in report.groups
        ],
        "dead": [_process(process) for process in report.dead],
        "missing": [
            {"hash": one.hash} | _rank(rank) for one in report.communicators for rank in one.missing_ranks
        ],
        "mismatches": [entry for one in report.communicators for entry in _mismatches(one)],
        "corrupt": report.corrupt,
        "not_understood": list(report.not_understood),
        "missing_processes": [_process(process) for process in report.missing],
        "rank_errors": [
            {
                "hash": one.hash,
                "kind": part.kind,
                "count": part.count,
                "values": [
                    {"error": share.value, "count": share.count, "ranks": [_rank(r) for r in share.ranks]}
                    for share in part.shares
                ],
            }
            for one in report.communicators
            for part in one.rank_errors
        ],
        "dropped": report.dropped,
        "events": [{"time": one.time, "event": one.name, "subject": one.subject} for one in report.events],
        "server_errors": list(report.server_errors),
    }
