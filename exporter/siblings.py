"""Ranks whose number follows from their siblings: those of multiprocessing, Ray and Lightning. Pure.

A process that multiprocessing or Ray started has no rank in its environment: its number is its place among
its siblings in order of start, as torch.multiprocessing.spawn numbers them; with several nodes the parent's
own rank or `--rank` is taken for the node's. Lightning's children say their local rank, and their parent is
local rank 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from exporter import launchers, roles
from exporter.jobs import JobName
from exporter.launchers import Claim
from exporter.rankmodel import Candidate, ProcessId


@dataclass(slots=True)
class _Family:
    """The ranks that one process started and whose numbers follow from their order."""

    members: list[ProcessId] = field(default_factory=list)  # in order of start
    size: int = 0


class Siblings:
    """Numbers ranks, and remembers the numbers when a sibling dies."""

    def __init__(self) -> None:
        self._families: dict[tuple[ProcessId, JobName | None], _Family] = {}

    def numbered(self, candidates: Mapping[int, Candidate]) -> tuple[dict[int, Claim], set[int]]:
        """Ranks whose number follows from their siblings: of multiprocessing, Ray and Lightning.

        Second, the parents of the spawned ones: the rank that such a parent claims is its node's.
        """
        lightning: dict[int, list[Candidate]] = {}
        spawned: dict[tuple[int, JobName | None], list[Candidate]] = {}  # by parent and job
        for one in candidates.values():
            parent = python_parent(candidates, one)
            above = parent.id.pid if parent is not None else next(iter(one.ancestors), 0)
            if one.claim is not None and one.claim.launcher == "lightning":
                if may_train(one) and (parent is None or parent.claim != one.claim):
                    lightning.setdefault(above, []).append(one)
            elif (one.claim is None and roles.is_ray_worker(one.command_line)) or (
                parent is not None and _is_spawned_rank(one, parent)
            ):
                spawned.setdefault((above, one.job), []).append(one)
        found: dict[int, Claim] = {}
        for (pid, job), members in spawned.items():
            found |= _spawned(candidates.get(pid), members, self._family(candidates, pid, job))
        for pid, members in lightning.items():
            found |= _lightning(candidates.get(pid), members, self._family(candidates, pid, None))
        return found, {pid for pid, _ in spawned}

    def _family(self, candidates: Mapping[int, Candidate], pid: int, job: JobName | None) -> _Family:
        """What is remembered of the ranks that this parent started."""
        parent = candidates[pid].id if pid in candidates else ProcessId(pid, 0)
        return self._families.setdefault((parent, job), _Family())

    def forget(self, alive: set[ProcessId]) -> None:
        """Keep only what belongs to these parents."""
        self._families = {key: one for key, one in self._families.items() if key[0] in alive}


def may_train(one: Candidate) -> bool:
    """Whether a process can be a rank by its own claim: a Python program that neither launches nor helps."""
    return (
        one.python
        and not one.launcher
        and one.name != "pt_data_worker"
        and not roles.is_multiprocessing_child(one.command_line)
        and not roles.is_helper_program(one.command_line)
    )


def in_group(one: Candidate) -> bool:
    """Whether a process is in a process group, by its threads."""
    return roles.has_process_group(one.threads)


def up_to_launcher(candidates: Mapping[int, Candidate], one: Candidate) -> Iterable[int]:
    """The ancestors below the nearest launcher, the parent first."""
    for pid in one.ancestors:
        if pid in candidates and candidates[pid].launcher:
            return
        yield pid


def python_parent(candidates: Mapping[int, Candidate], one: Candidate) -> Candidate | None:
    """The nearest ancestor that is a Python process and no launcher, as long as no launcher is between."""
    above = (candidates[pid] for pid in up_to_launcher(candidates, one) if pid in candidates)
    return next((each for each in above if each.python), None)


def _is_spawned_rank(one: Candidate, parent: Candidate) -> bool:
    """Whether multiprocessing started this rank: it is in a process group, and the parent is in none."""
    child = roles.is_multiprocessing_child(one.command_line) or one.command_line == parent.command_line
    same_claim = one.claim is None or one.claim.launcher == "arguments" or one.claim == parent.claim
    return child and same_claim and in_group(one) and not in_group(parent) and one.name != "pt_data_worker"


def _spawned(parent: Candidate | None, members: list[Candidate], family: _Family) -> dict[int, Claim]:
    """Number the ranks in order of start; where the parent claims a rank, it is its node's."""
    alive = {one.id for one in members}
    if alive.isdisjoint(family.members):
        family.members.clear()  # the next training of the same parent
    family.members = sorted({*family.members, *alive}, key=lambda one: (one.start_ticks, one.pid))
    size = len(family.members)
    node = (parent.claim or launchers.from_arguments(parent.command_line)) if parent is not None else None
    node_rank = node.rank if node is not None and node.rank is not None else 0
    nodes = node.world_size if node is not None and node.world_size is not None else 1
    kind = "ray" if roles.is_ray_worker(members[0].command_line) else "spawn"
    return {
        member.pid: Claim(
            launcher=kind,
            rank=node_rank * size + index,
            local_rank=index,
            world_size=nodes * size,
            local_world_size=size,
            node_rank=node_rank,
        )
        for index, member in enumerate(family.members)
        if member in alive
    }


def _lightning(parent: Candidate | None, members: Iterable[Candidate], family: _Family) -> dict[int, Claim]:
    """Lightning's children say their local rank; the parent, which says none, is local rank 0."""
    claims = {one.id.pid: one.claim for one in members if one.claim is not None}
    if parent is not None and parent.claim is None and parent.python:
        some = next(iter(claims.values()))
        claims[parent.id.pid] = replace(some, local_rank=0)
    family.size = size = max(family.size, *((claim.local_rank or 0) + 1 for claim in claims.values()))
    return {
        pid: replace(
            claim,
            rank=(claim.node_rank or 0) * size + (claim.local_rank or 0),
            local_world_size=min(size, claim.world_size or size),
        )
        for pid, claim in claims.items()
    }
