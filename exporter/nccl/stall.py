"""Which mismatches stand still: a busy healthy job often shows one, as its ranks are read one by one."""

from __future__ import annotations

from dataclasses import dataclass

from exporter.nccl.model import Communicator, RasReport

Signature = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Stall:
    """A mismatched communicator and since when nothing about it has changed."""

    signature: Signature
    since: float  # Unix seconds of the first answer that showed it so


def signature(communicator: Communicator) -> Signature:
    """What must not change for a mismatch to stand still: states, launch counts, and how many have each."""
    statuses = () if communicator.statuses is None else communicator.statuses.shares
    return (
        tuple(sorted((share.value, share.count) for share in statuses)),
        tuple(
            (launch.op, tuple(sorted((share.launched, share.count) for share in launch.shares)))
            for launch in communicator.launches
        ),
        communicator.launched,
    )


def follow(stalls: dict[str, Stall], report: RasReport, at: float) -> dict[str, Stall]:
    """The stalls by communicator hash after one more answer, taken `at`.

    An answer whose tables cannot be trusted neither ends a stall nor begins one.
    """
    if not report.tables_trusted:
        return stalls
    found: dict[str, Stall] = {}
    for communicator in report.communicators:
        if not communicator.mismatched:
            continue
        now = Stall(signature(communicator), at)
        before = stalls.get(communicator.hash)
        found[communicator.hash] = before if before and before.signature == now.signature else now
    return found
