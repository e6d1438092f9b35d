"""Parallel groups: the smallest part of the job that explains a set of culprits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from snapshotter.stacks import rankset
from snapshotter.stacks.case import Case
from snapshotter.stacks.rankset import RankSet

MOSTLY = 0.5  # a group with fewer culprits in it explains nothing

_FLAGS = {
    "tensor": r"tensor[-_](?:model[-_])?parallel[-_](?:size|degree)|tp(?:[-_]size)?",
    "pipeline": r"pipeline[-_](?:model[-_])?parallel[-_](?:size|degree)|pp(?:[-_]size)?",
}
_VARIABLES = {
    "tensor": ("TENSOR_PARALLEL_SIZE", "TENSOR_MODEL_PARALLEL_SIZE", "TP_SIZE"),
    "pipeline": ("PIPELINE_PARALLEL_SIZE", "PIPELINE_MODEL_PARALLEL_SIZE", "PP_SIZE"),
}


@dataclass(frozen=True, slots=True)
class ParallelSizes:
    """Ranks per tensor-parallel group and number of pipeline stages; None: as the processes say.

    Ranks in the order of Megatron-LM: a tensor-parallel group is neighbours, a pipeline stage a large block.
    """

    tensor: int | None = None
    pipeline: int | None = None


NO_SIZES = ParallelSizes()


@dataclass(frozen=True, slots=True)
class Group:
    """A part of the job. `name` reads after "all of": `node gpu-node-5`, `pipeline stage 2`."""

    kind: str
    name: str
    ranks: RankSet


@dataclass(frozen=True, slots=True)
class Explanation:
    """The group, or groups of one kind, that the culprits fill. `whole`: they are all of it."""

    groups: tuple[Group, ...]
    whole: bool

    @property
    def text(self) -> str:
        """`node gpu-node-5`, `nodes a and b`."""
        if len(self.groups) == 1:
            return self.groups[0].name
        return " and ".join(group.name for group in self.groups)


def sizes_of(case: Case, configured: ParallelSizes) -> ParallelSizes:
    """Configured sizes, else those in a trainer's command line or environment, else none."""
    found = {"tensor": configured.tensor, "pipeline": configured.pipeline}
    trainer = next((view.trainer for view in case.ranks.values() if view.trainer.command_line), None)
    for kind, size in found.items():
        if size is None and trainer is not None:
            found[kind] = _stated(kind, trainer.command_line, trainer.environment)
    return ParallelSizes(found["tensor"], found["pipeline"])


def _stated(kind: str, command_line: str, environment: dict[str, str]) -> int | None:
    match = re.search(rf"(?:^|\s)--?(?:{_FLAGS[kind]})[=\s](\d{{1,5}})(?:\s|$)", command_line)
    if match:
        return int(match[1])
    for name in _VARIABLES[kind]:
        size = rankset.number(environment.get(name))
        if size is not None:
            return size
    return None


def groups_of(case: Case, sizes: ParallelSizes) -> Iterator[Group]:
    """All groups that the facts tell of."""
    yield from _labelled(case)
    world = case.world.bit_length()
    tensor, pipeline = sizes.tensor, sizes.pipeline
    if pipeline and 1 < pipeline <= world and world % pipeline == 0:
        width = world // pipeline
        for stage in range(pipeline):
            ranks = rankset.span(stage * width, (stage + 1) * width - 1)
            yield Group("pipeline stage", f"pipeline stage {stage}", ranks & case.world)
    if tensor and 1 < tensor < world and world % tensor == 0:
        for number in range(world // tensor):
            ranks = rankset.span(number * tensor, (number + 1) * tensor - 1)
            yield Group("tensor-parallel group", f"tensor-parallel group {number}", ranks & case.world)


def _labelled(case: Case) -> Iterator[Group]:
    sets: dict[tuple[str, str], list[int]] = {}
    for rank, view in case.ranks.items():
        trainer = view.trainer
        local = trainer.gpu if trainer.gpu is not None else trainer.local_rank
        labels = (
            ("node", trainer.node),
            ("pod", trainer.pod),
            ("GPU", None if local is None else str(local)),
        )
        for kind, label in labels:
            if label:
                sets.setdefault((kind, label), []).append(rank)
    several = sum(kind == "node" for kind, _ in sets) > 1
    for (kind, label), members in sorted(sets.items()):
        if kind == "GPU" and not several:
            continue  # one rank, which says nothing
        name = f"GPU {label} of every node" if kind == "GPU" else f"{kind} {label}"
        yield Group(kind, name, rankset.of(members))


def explain(case: Case, culprits: RankSet, sizes: ParallelSizes) -> Explanation | None:
    """The smallest group that holds all culprits, if they are most of it; else several that they fill."""
    if culprits.bit_count() < 2 or culprits == case.world:
        return None
    groups = [group for group in groups_of(case, sizes) if group.ranks and group.ranks != case.world]
    best = min(
        (group for group in groups if not culprits & ~group.ranks),
        key=lambda group: group.ranks.bit_count(),
        default=None,
    )
    if best is not None and culprits.bit_count() > MOSTLY * best.ranks.bit_count():
        return Explanation((best,), whole=best.ranks == culprits)
    for kind in ("node", "pipeline stage", "pod", "tensor-parallel group", "GPU"):
        filled = [g for g in groups if g.kind == kind and not g.ranks & ~culprits]
        if 1 < len(filled) <= 4 and rankset.union(g.ranks for g in filled) == culprits:
            return Explanation(tuple(filled), whole=True)
    return None
