"""The snapshotter's configuration file: everything has a default, so that it works with none."""

from __future__ import annotations

from pathlib import Path

import msgspec

from exporter import yamlconfig
from exporter.yamlconfig import Duration, Size


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of the file; unknown keys are refused."""


class StorageConfig(Section, frozen=True):
    """Where captures are kept. `--storage.path` is the folder of all that is not placed elsewhere here."""

    index: str | None = None  # SQLAlchemy URL, postgresql://… to share it; None: SQLite in the folder
    queue: str | None = None  # postgresql://… or redis://… to share the work; None: SQLite in the folder
    bundles: str | None = None  # a folder, or an fsspec URL such as s3://bucket/prefix
    keep: Duration = Duration(30 * 86400)
    max_size: Size = Size(20 * 1024**3)  # of all bundles; the oldest that are not pinned go first


class IncidentConfig(Section, frozen=True):
    """Which alerts ask for a capture, and how often one hang is captured."""

    # Names (globs) of the alerts that ask for a capture. An alert with the label hangscope_capture="true"
    # does so under any name, one with hangscope_capture="false" never does.
    alertnames: tuple[str, ...] = ("TrainingHang", "TrainingHangConfirmed")
    cool_down: Duration = Duration(600)  # at least this long between two captures that alerts ask for
    recapture_after: Duration = Duration(900)  # while the hang lasts; doubled each time
    max_captures: int = 4  # of one incident
    forget_after: Duration = Duration(86400)  # an incident is over if no notification came for so long


class CaptureConfig(Section, frozen=True):
    """How one node is captured."""

    sample_interval: Duration = Duration(5)  # between the two samples that tell frozen from moving
    processes_at_once: int = 8  # py-spy that run at a time on a node


class ScheduleConfig(Section, frozen=True):
    """One entry of `schedules`: a capture of a job at fixed intervals, hang or not."""

    job_id: str
    every: Duration
    reason: str = "scheduled"


class Config(Section, frozen=True):
    """The whole file."""

    storage: StorageConfig = StorageConfig()
    incidents: IncidentConfig = IncidentConfig()
    capture: CaptureConfig = CaptureConfig()
    schedules: tuple[ScheduleConfig, ...] = ()
    workers: int = 4  # captures of different jobs at once


def load(path: Path | None) -> Config:
    """The configuration of a file, or the defaults where there is none. Raises yamlconfig.ConfigError."""
    if path is None:
        return Config()
    config = yamlconfig.load(path, Config)
    _check(config, str(path))
    return config


def _check(config: Config, where: str) -> None:
    """What types cannot say. Raises yamlconfig.ConfigError."""
    problems = (
        (config.workers < 1, "workers", "at least 1"),
        (config.incidents.max_captures < 1, "incidents.max_captures", "at least 1"),
        (config.incidents.recapture_after <= 0, "incidents.recapture_after", "longer than 0s"),
        (config.storage.keep <= 0, "storage.keep", "longer than 0s"),
    )
    for wrong, key, wanted in problems:
        if wrong:
            raise yamlconfig.ConfigError(f"{where}: {key} must be {wanted}")
    for number, schedule in enumerate(config.schedules):
        if schedule.every < 60:
            raise yamlconfig.ConfigError(f"{where}: schedules[{number}].every must be at least 1m")
        if not schedule.job_id:
            raise yamlconfig.ConfigError(f"{where}: schedules[{number}].job_id is empty")
