"""The analysis as the service and the commands run it: with the site's own frames and group sizes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.yamlconfig import ConfigError
from snapshotter.config import AnalysisConfig
from snapshotter.stacks import report
from snapshotter.stacks.groups import ParallelSizes
from snapshotter.stacks.knowledge import Entry, Knowledge, with_entries
from snapshotter.stacks.premerge import NodeTree, digest_trees
from snapshotter.stacks.report import Report


@dataclass(frozen=True, slots=True)
class Analyser:
    """Makes report.json of a job's nodes, each merged; safe to use from several threads."""

    knowledge: Knowledge
    sizes: ParallelSizes

    def __call__(self, job_id: str, trees: Iterable[NodeTree], at: float) -> dict[str, Any]:
        """The report as plain data, written at Unix second `at`."""
        return report.to_json(self.report(job_id, trees, at))

    def report(self, job_id: str, trees: Iterable[NodeTree], at: float) -> Report:
        """The same as objects."""
        return report.analyse_digest(
            digest_trees(trees), job_id=job_id, at=at, knowledge=self.knowledge, sizes=self.sizes
        )


def analyser(config: AnalysisConfig, where: Path | None = None) -> Analyser:
    """The analysis by the `analysis` section of the configuration file `where`. Raises ConfigError."""
    entries = (Entry(one.kind, one.path, one.function) for one in config.frames)  # type: ignore[arg-type]
    try:
        knowledge = with_entries(entries)
    except ValueError as error:
        file = "" if where is None else f"{where}: "
        raise ConfigError(f"{file}analysis.frames: {error}") from error
    return Analyser(knowledge, ParallelSizes(config.tensor_parallel_size, config.pipeline_parallel_size))
