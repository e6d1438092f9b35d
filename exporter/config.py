"""The exporter's configuration file: everything has a default, so that it works with none."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from exporter import yamlconfig
from exporter.yamlconfig import Duration


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of the file; unknown keys are refused."""


class LogConfig(Section):
    """One entry of `logs`: files to follow, and what is known of them beforehand."""

    path: str  # a glob; `**` crosses folders
    job_id: str | None = None
    framework: str | None = None  # pins a preset; None: what the log shows
    pattern: str | None = None  # regex with the named groups iteration, total, epoch
    hang_limit: Duration | None = None


class JobConfig(Section):
    """One entry of `jobs`: settings for the jobs whose id matches."""

    job_id: str  # a glob
    hang_limit: Duration | None = None
    framework: str | None = None
    pattern: str | None = None


class LimitsConfig(Section):
    """How long a log may go without an iteration before it counts as hung."""

    hang_limit: Duration | None = None  # None: learned from the job's own intervals
    factor: float = 5.0  # learned limit = robust high quantile of the intervals times this
    floor: Duration = Duration(60)
    ceiling: Duration = Duration(1800)
    minimum_intervals: int = 5
    startup_grace: Duration = Duration(1800)  # before the first iteration


class IdentityConfig(Section):
    """How processes are tied to jobs."""

    job_id: str | None = None  # all training processes of this node belong to this job


class NcclConfig(Section):
    """Asking NCCL's RAS service. Each question may cost the job something, so it is asked seldom."""

    enabled: bool = True  # false: no job is ever asked
    interval: Duration = Duration(60)  # between two questions to one job; 60s or slower
    quiet_start: Duration = Duration(600)  # never asked in a job's first minutes
    ask_unsafe_versions: bool = False  # also versions that a question can crash, or that cannot be known
    version: str | None = None  # NCCL version where the library does not say it; None: as the library says
    format: Literal["auto", "text", "json"] = "auto"  # JSON leaks 60 bytes a rank in the job

    def __post_init__(self) -> None:
        if self.interval < 60:
            raise ValueError("nccl.interval must be 60s or slower: each question costs the job something")


class Config(Section):
    """The whole file."""

    node_name: str | None = None  # None: $NODE_NAME, else the host name
    identity: IdentityConfig = IdentityConfig()
    logs: tuple[LogConfig, ...] = ()
    jobs: tuple[JobConfig, ...] = ()
    limits: LimitsConfig = LimitsConfig()
    nccl: NcclConfig = NcclConfig()


def load(path: Path | None) -> Config:
    """The configuration of a file, or the defaults where there is none. Raises yamlconfig.ConfigError."""
    return Config() if path is None else yamlconfig.load(path, Config)
