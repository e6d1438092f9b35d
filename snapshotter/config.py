"""The snapshotter's configuration file: everything has a default, so that it works with none."""

from __future__ import annotations

from pathlib import Path

import msgspec

from exporter import yamlconfig
from exporter.yamlconfig import Duration, Size
from snapshotter.capture.inventory import parse_agent


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of the file; unknown keys are refused."""


class StorageConfig(Section, frozen=True):
    """Where captures are kept. `--storage.path` is the folder of all that is not placed elsewhere here."""

    index: str | None = None  # postgresql://… to share it; None: SQLite in the folder
    queue: str | None = None  # postgresql://… or redis://…; None: where the index is
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

    job_id: str | None = None  # all training processes of this node; as the exporter's identity.job_id
    sample_interval: Duration = Duration(5)  # between the two samples that tell frozen from moving
    processes_at_once: int = 16  # py-spy that run at a time on a node
    process_timeout: Duration = Duration(10)  # for the stacks of one process
    node_timeout: Duration = Duration(60)  # for everything a node does
    # C frames of outliers and of one process of each class; stops each of them, for up to some seconds
    native_frames: bool = False
    native_when_unclear: bool = True  # the same, only where Python frames do not tell what a hang is
    ask_nccl: bool = True  # NCCL's RAS service, where its version and the job's age allow
    ask_unsafe_nccl_versions: bool = False


class AgentsConfig(Section, frozen=True):
    """Where the agents are. Without Prometheus and without nodes, this node alone is captured."""

    nodes: tuple[str, ...] = ()  # HOST, HOST:PORT or NODE=HOST:PORT, where Prometheus has nothing to say
    port: int = 11030
    address_label: str = "instance"  # label of training_process_info whose host the agent listens on
    token_file: str | None = None  # bearer token that the agents want
    tls: bool = False  # https
    ca_file: str | None = None  # None: the system's authorities
    cert_file: str | None = None  # what this service shows to agents that want a client certificate
    key_file: str | None = None
    server_name: str | None = None  # in the agents' certificates; None: each names the address it is asked at
    total_timeout: Duration = Duration(120)  # for all nodes together


class PrometheusConfig(Section, frozen=True):
    """The Prometheus that scrapes the exporters; `--prometheus.url` overrides the url."""

    url: str | None = None
    token_file: str | None = None


class FrameConfig(Section, frozen=True):
    """One entry of `analysis.frames`: what a frame of the site's own code means. See docs/verdict.md."""

    kind: str  # of activity: collective, data, storage, checkpoint, compute, lock, …
    path: str = ""  # regex searched in the file name
    function: str = ""  # regex that the function's name, without its class, must match as a whole


class AnalysisConfig(Section, frozen=True):
    """What the analysis cannot see in the stacks."""

    frames: tuple[FrameConfig, ...] = ()  # come before the built-in table
    tensor_parallel_size: int | None = None  # None: as frames and environment say
    pipeline_parallel_size: int | None = None


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
    agents: AgentsConfig = AgentsConfig()
    prometheus: PrometheusConfig = PrometheusConfig()
    analysis: AnalysisConfig = AnalysisConfig()
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
        (config.capture.processes_at_once < 1, "capture.processes_at_once", "at least 1"),
        (not 0 <= config.capture.sample_interval <= 60, "capture.sample_interval", "0s to 1m"),
        (not 1 <= config.capture.node_timeout <= 600, "capture.node_timeout", "1s to 10m"),
        (not 0 < config.agents.port < 65536, "agents.port", "1 to 65535"),
    )
    for wrong, key, wanted in problems:
        if wrong:
            raise yamlconfig.ConfigError(f"{where}: {key} must be {wanted}")
    _check_sharing(config.storage, where)
    for number, node in enumerate(config.agents.nodes):
        try:
            parse_agent(node)
        except ValueError as error:
            raise yamlconfig.ConfigError(f"{where}: agents.nodes[{number}]: {error}") from error
    for number, schedule in enumerate(config.schedules):
        if schedule.every < 60:
            raise yamlconfig.ConfigError(f"{where}: schedules[{number}].every must be at least 1m")
        if not schedule.job_id:
            raise yamlconfig.ConfigError(f"{where}: schedules[{number}].job_id is empty")


def _check_sharing(storage: StorageConfig, where: str) -> None:
    """Several snapshotters share the work only if they share index, queue and bundles. Raises ConfigError."""
    shared_index = (storage.index or "").startswith("postgres")
    if not shared_index and (storage.queue or "").startswith(("postgres", "redis", "unix")):
        raise yamlconfig.ConfigError(
            f"{where}: storage.queue is shared but storage.index is not: give a postgresql:// URL for both"
        )
    if shared_index and storage.bundles is None:
        raise yamlconfig.ConfigError(
            f"{where}: storage.index is shared: storage.bundles must be a folder or store that all share"
        )
