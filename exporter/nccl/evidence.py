"""What a RAS answer says against single ranks, tied to the ranks of the job.

Only what was found is a fact: a communicator that reads OK proves nothing, as its counters are launches and
not completions, and RAS watches processes and not progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Literal

from exporter.nccl.model import Communicator, LaunchMismatch, LaunchShare, RasProcess, RasRank, RasReport
from exporter.nccl.stall import signature


@dataclass(frozen=True, slots=True)
class KnownProcess:
    """A trainer of the job as the capture knows it. `pids`: its pid in every pid namespace that it is in."""

    node: str
    rank: int
    pids: tuple[int, ...]
    addresses: tuple[str, ...] = ()  # of the node, where known: `10.0.0.5` or `127.0.0.0/8`


@dataclass(frozen=True, slots=True)
class RankFact:
    """One thing that RAS found about one rank or process.

    `rank` is the world rank, None where it could not be told; `node` the job's name of the node, or RAS's
    address where that could not be told. `communicator` is None for what is said of a process; of its `size`
    ranks `alike` are in the same condition: the fewer, the more that says.
    """

    kind: Literal["dead", "missing", "behind", "error", "state"]
    rank: int | None
    node: str | None
    pid: int | None
    communicator: str | None
    text: str
    alike: int = 1
    size: int | None = None


def facts(
    report: RasReport,
    known: Iterable[KnownProcess] = (),
    *,
    world_size: int | None = None,
    earlier: RasReport | None = None,
) -> tuple[RankFact, ...]:
    """Facts of an answer: dead first, then missing, behind, in error, in another state; each once.

    With an `earlier` answer a mismatch counts only where nothing about it has changed since: a busy healthy
    job shows mismatches that move.
    """
    who = _Who(report, tuple(known), world_size)
    moving = _moving(report, earlier)
    found = list(_process_facts(report, who))
    for communicator in report.communicators:
        found.extend(_missing_facts(communicator, who))
        if not report.tables_trusted:
            continue
        found.extend(_error_facts(communicator, who))
        if communicator.hash not in moving:
            found.extend(_behind_facts(communicator, who))
            found.extend(_state_facts(communicator, who))
    order = {"dead": 0, "missing": 1, "behind": 2, "error": 3, "state": 4}
    return tuple(sorted(dict.fromkeys(found), key=lambda fact: order[fact.kind]))


def _moving(report: RasReport, earlier: RasReport | None) -> set[str]:
    if earlier is None:
        return set()
    before = {one.hash: signature(one) for one in earlier.communicators}
    return {one.hash for one in report.communicators if before.get(one.hash) != signature(one)}


class _Who:
    """Ties RAS's ranks and processes to those of the job.

    By node and pid where the node is known by its address; else by the communicator of all ranks, which
    frameworks make with the world ranks; else by pid on the node that RAS's pids fit alone.
    """

    def __init__(self, report: RasReport, known: tuple[KnownProcess, ...], world_size: int | None) -> None:
        self._world_size = world_size
        addresses = {process.node for process in report.processes}
        self._sure = _nodes_by_address(addresses, known)
        # Text names few processes: without those of all nodes the only fit may be another node's process.
        whole_job = report.format == "json" or len({one.rank for one in known}) == world_size
        unsure = tuple(one for one in known if whole_job and not one.addresses)
        self._guessed = _nodes_by_pids(
            [process for process in report.processes if process.node not in self._sure], unsure
        )
        self._ranks: dict[tuple[str | None, int | None], set[int]] = {}
        for one in known:
            for pid in one.pids:
                self._ranks.setdefault((one.node, pid), set()).add(one.rank)
        whole = [one for one in report.communicators if one.size == world_size is not None]
        members = report.largest if len(report.largest) == world_size else ()
        named = [rank for one in whole for rank in one.named]
        self._world: dict[tuple[str | None, int | None, int | None], int] = {
            (one.node, one.pid, one.gpu): one.rank for one in (*named, *members) if one.pid is not None
        }

    def node(self, address: str | None) -> str | None:
        if address is None:
            return None
        return self._sure.get(address) or self._guessed.get(address) or address

    def of_process(self, process: RasProcess) -> int | None:
        found = {self._world.get((process.node, process.pid, gpu)) for gpu in process.gpus}
        world = next(iter(found)) if len(found) == 1 else None
        return self._best(process.node, process.pid, world)

    def of_rank(self, rank: RasRank, communicator: Communicator) -> int | None:
        world = self._world.get((rank.node, rank.pid, rank.gpu))
        if world is None and communicator.size == self._world_size:
            world = rank.rank
        return self._best(rank.node, rank.pid, world)

    def _best(self, address: str | None, pid: int | None, world: int | None) -> int | None:
        by_address = self._only(self._sure.get(address or ""), pid)
        if by_address is not None:
            return by_address
        return world if world is not None else self._only(self._guessed.get(address or ""), pid)

    def _only(self, node: str | None, pid: int | None) -> int | None:
        ranks = self._ranks.get((node, pid), set())
        return next(iter(ranks)) if len(ranks) == 1 else None


def _nodes_by_address(addresses: Iterable[str], known: tuple[KnownProcess, ...]) -> dict[str, str]:
    networks = {(ip_network(text, strict=False), one.node) for one in known for text in one.addresses}
    found: dict[str, str] = {}
    for address in addresses:
        try:
            number = ip_address(address.partition("%")[0])
        except ValueError:
            continue
        nodes = {node for network, node in networks if number in network}
        if len(nodes) == 1:
            found[address] = nodes.pop()
    return found


def _nodes_by_pids(processes: list[RasProcess], known: tuple[KnownProcess, ...]) -> dict[str, str]:
    """Nodes whose pids fit those that RAS saw at an address better than any other, and the address likewise.

    Pids in containers are much alike on all nodes: then nothing is told apart.
    """
    seen: dict[str, set[int]] = {}
    for process in processes:
        seen.setdefault(process.node, set()).add(process.pid)
    pids: dict[str, set[int]] = {}
    for one in known:
        pids.setdefault(one.node, set()).update(one.pids)
    fits = {
        (address, node): len(some & theirs)
        for address, some in seen.items()
        for node, theirs in pids.items()
        if some & theirs
    }
    return {
        address: node
        for (address, node), fit in fits.items()
        if all(
            other < fit or pair == (address, node)
            for pair, other in fits.items()
            if pair[0] == address or pair[1] == node
        )
    }


def _called(rank: int | None, other: str) -> str:
    return f"rank {rank}" if rank is not None else other


def _process_facts(report: RasReport, who: _Who) -> Iterator[RankFact]:
    for process in report.dead:
        rank, node = who.of_process(process), who.node(process.node)
        name = _called(rank, "a process")
        text = f"NCCL considers {name} dead (pid {process.pid} on {node}): unreachable for a minute or more"
        yield RankFact("dead", rank, node, process.pid, None, text)
    for process in report.missing:
        rank, node = who.of_process(process), who.node(process.node)
        name = _called(rank, "a process")
        text = f"{name} (pid {process.pid} on {node}) does not answer NCCL's RAS network"
        yield RankFact("missing", rank, node, process.pid, None, text)


def _fact(
    kind: Literal["missing", "behind", "error", "state"],
    rank: RasRank,
    communicator: Communicator,
    who: _Who,
    text: str,
    alike: int,
) -> RankFact:
    world = who.of_rank(rank, communicator)
    name = _called(world, f"rank {rank.rank} of the communicator")
    return RankFact(
        kind,
        world,
        who.node(rank.node),
        rank.pid,
        communicator.hash,
        f"{name} {text} (communicator {communicator.hash})",
        alike,
        communicator.size,
    )


def _missing_facts(communicator: Communicator, who: _Who) -> Iterator[RankFact]:
    for rank in communicator.missing_ranks:
        yield _fact("missing", rank, communicator, who, "gives no data to NCCL's RAS", communicator.missing)


def _error_facts(communicator: Communicator, who: _Who) -> Iterator[RankFact]:
    for part in communicator.rank_errors:
        for share in part.shares:
            for rank in share.ranks:
                text = f"reports the {part.kind} error {share.value!r}"
                yield _fact("error", rank, communicator, who, text, share.count)


def _behind_facts(communicator: Communicator, who: _Who) -> Iterator[RankFact]:
    for launch in communicator.launches:
        highest = max((share.launched for share in launch.shares), default=0)
        for share, rank in _behind(launch, communicator.size):
            text = f"has launched {share.launched} {launch.op} operations where others launched {highest}"
            yield _fact("behind", rank, communicator, who, text, share.count)


def _behind(launch: LaunchMismatch, size: int | None) -> Iterator[tuple[LaunchShare, RasRank]]:
    """Ranks that launched fewer than the one furthest ahead.

    The text never names the majority: where all that are ahead are named, those behind are the others.
    """
    highest = max((share.launched for share in launch.shares), default=0)
    behind = [share for share in launch.shares if share.launched < highest]
    for share in behind:
        for rank in share.ranks:
            yield share, rank
    unnamed = [share for share in launch.shares if len(share.ranks) < share.count]
    if size is not None and len(unnamed) == 1 and unnamed[0] in behind and not unnamed[0].ranks:
        named = {rank.rank for share in launch.shares for rank in share.ranks}
        if len(named) + unnamed[0].count == size:
            for number in sorted(set(range(size)) - named):
                yield unnamed[0], RasRank(number)


def _state_facts(communicator: Communicator, who: _Who) -> Iterator[RankFact]:
    shares = communicator.statuses.shares if communicator.statuses is not None else ()
    if not shares:
        return
    usual = max(shares, key=lambda share: share.count)
    for share in shares:
        if share is usual:
            continue
        for rank in share.ranks:
            text = f"is in state {share.value} where {usual.count} others are {usual.value}"
            yield _fact("state", rank, communicator, who, text, share.count)
