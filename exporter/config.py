"""The exporter's configuration file: everything has a default, so that it works with none."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Literal

import msgspec

from exporter import yamlconfig
from exporter.logs.frameworks import NAMES
from exporter.logs.progress import NEWEST_INTERVALS
from exporter.logs.userpattern import compiled
from exporter.yamlconfig import Duration


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of the file; unknown keys are refused."""


class LogConfig(Section, frozen=True):
    """One entry of `logs`: files to follow, and what is known of them beforehand."""

    path: str  # a glob; `**` crosses folders
    job_id: str | None = None
    framework: str | None = None  # pins a preset; None: what the log shows
    pattern: str | None = None  # regex with the named groups iteration, total, epoch
    hang_limit: Duration | None = None

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("path is empty")
        _check_pinned(self.framework, self.pattern)
        _check_limit(self.hang_limit)


class JobConfig(Section, frozen=True):
    """One entry of `jobs`: settings for the jobs whose id matches."""

    job_id: str  # a glob
    hang_limit: Duration | None = None
    framework: str | None = None
    pattern: str | None = None

    def __post_init__(self) -> None:
        _check_pinned(self.framework, self.pattern)
        _check_limit(self.hang_limit)


def _check_limit(hang_limit: float | None) -> None:
    """Raises ValueError for a limit under which every job hangs."""
    if hang_limit is not None and hang_limit <= 0:
        raise ValueError("hang_limit must be longer than 0s")


def _check_pinned(framework: str | None, pattern: str | None) -> None:
    """How records are to be read, where it is set. Raises ValueError."""
    if framework is not None and pattern is not None:
        raise ValueError("framework and pattern are both set: a pattern replaces the framework's own")
    if framework is not None and framework not in NAMES:
        near = difflib.get_close_matches(framework, NAMES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(NAMES)}"
        raise ValueError(f"no framework {framework!r}: {hint}")
    if pattern is not None:
        compiled(pattern)


class LimitsConfig(Section, frozen=True):
    """How long a log may go without an iteration before it counts as hung."""

    hang_limit: Duration | None = None  # None: learned from the job's own intervals
    factor: float = 5.0  # learned limit = robust high quantile of the intervals times this
    floor: Duration = Duration(60)
    ceiling: Duration = Duration(1800)
    minimum_intervals: int = 5
    startup_grace: Duration = Duration(1800)  # before the first iteration
    # In the first evaluation, checkpoint or compilation, while nothing is known of how long they take. Well below
    # the ten minutes after which NCCL's watchdog would kill a job that hangs there.
    pause_grace: Duration = Duration(300)

    def __post_init__(self) -> None:
        _check_limit(self.hang_limit)
        if not 1 <= self.factor <= 1000:  # written so that NaN is refused as well
            raise ValueError(f"factor {self.factor:g} is not between 1 and 1000")
        if self.floor > self.ceiling:
            raise ValueError(f"floor {self.floor:g}s is above the ceiling {self.ceiling:g}s")
        if not 1 <= self.minimum_intervals <= NEWEST_INTERVALS:
            raise ValueError(
                f"minimum_intervals must be 1 to {NEWEST_INTERVALS}, the intervals that are kept"
            )


class IdentityConfig(Section, frozen=True):
    """How processes are tied to jobs."""

    job_id: str | None = None  # all training processes of this node belong to this job


class NcclConfig(Section, frozen=True):
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


class Config(Section, frozen=True):
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
