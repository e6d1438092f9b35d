"""The snapshotter's configuration file: everything has a default, so that it works with none."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import fsspec
import msgspec

from exporter import yamlconfig
from exporter.yamlconfig import Duration, Size
from snapshotter.capture.inventory import parse_agent

_MOST_THREADS = 256
_LONGEST_JOB_ID = 1024
_LONGEST_REASON = 500
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


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
    capture, agents, incidents = config.capture, config.agents, config.incidents
    problems = (
        (not 1 <= config.workers <= _MOST_THREADS, "workers", f"1 to {_MOST_THREADS}"),
        (incidents.max_captures < 1, "incidents.max_captures", "at least 1"),
        (incidents.recapture_after <= 0, "incidents.recapture_after", "longer than 0s"),
        (incidents.forget_after < 60, "incidents.forget_after", "at least 1m, and more than repeat_interval"),
        (config.storage.keep <= 0, "storage.keep", "longer than 0s"),
        (config.storage.max_size < 1, "storage.max_size", "at least 1 byte"),
        (capture.job_id == "", "capture.job_id", "a name, or left out"),
        (
            not 1 <= capture.processes_at_once <= _MOST_THREADS,
            "capture.processes_at_once",
            f"1 to {_MOST_THREADS}",
        ),
        (not 0 <= capture.sample_interval <= 60, "capture.sample_interval", "0s to 1m"),
        (not 0.1 <= capture.process_timeout <= 600, "capture.process_timeout", "100ms to 10m"),
        (not 1 <= capture.node_timeout <= 600, "capture.node_timeout", "1s to 10m"),
        (not 0 < agents.port < 65536, "agents.port", "1 to 65535"),
        (
            agents.total_timeout < capture.node_timeout,
            "agents.total_timeout",
            f"at least capture.node_timeout, {capture.node_timeout:g}s: no node would answer in time",
        ),
        (not _LABEL.fullmatch(agents.address_label), "agents.address_label", "the name of a label"),
        (_below_one(config.analysis.tensor_parallel_size), "analysis.tensor_parallel_size", "at least 1"),
        (_below_one(config.analysis.pipeline_parallel_size), "analysis.pipeline_parallel_size", "at least 1"),
    )
    for wrong, key, wanted in problems:
        if wrong:
            raise yamlconfig.ConfigError(f"{where}: {key} must be {wanted}")
    check_url(config.prometheus.url, f"{where}: prometheus.url")
    _check_storage(config.storage, where)
    _check_agents(agents, where)
    seen: set[str] = set()
    for number, schedule in enumerate(config.schedules):
        key = f"{where}: schedules[{number}]"
        if schedule.every < 60:
            raise yamlconfig.ConfigError(f"{key}.every must be at least 1m")
        if not schedule.job_id:
            raise yamlconfig.ConfigError(f"{key}.job_id is empty")
        if len(schedule.job_id) > _LONGEST_JOB_ID or len(schedule.reason) > _LONGEST_REASON:
            raise yamlconfig.ConfigError(
                f"{key} is too long: job_id has at most {_LONGEST_JOB_ID} characters, reason {_LONGEST_REASON}"
            )
        if schedule.job_id in seen:
            raise yamlconfig.ConfigError(f"{key}.job_id has a schedule already: keep one of the two")
        seen.add(schedule.job_id)


def _below_one(number: int | None) -> bool:
    return number is not None and number < 1


def check_url(url: str | None, name: str) -> None:
    """Raises yamlconfig.ConfigError for what is no address of a web server; `name` is whose value it is."""
    if url is None:
        return
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        good = False
    if not good:
        raise yamlconfig.ConfigError(f"{name}: {url!r} is no address: write it like http://prometheus:9090")


def _check_storage(storage: StorageConfig, where: str) -> None:
    """Where things are kept, and that several snapshotters share all of it or nothing. Raises ConfigError."""
    kinds = {
        "index": (storage.index, ("sqlite", "postgresql", "postgres")),
        "queue": (storage.queue, ("sqlite", "postgresql", "postgres", "redis", "rediss", "unix")),
    }
    for key, (url, known) in kinds.items():
        scheme, separator, _ = (url or "").partition(":")
        if url is not None and not (separator and scheme.partition("+")[0] in known):
            listed = ", ".join(f"{one}://…" for one in known if one != "postgres")
            raise yamlconfig.ConfigError(f"{where}: storage.{key} must be one of {listed}, or left out")
    if storage.bundles is not None and (not storage.bundles or storage.bundles.startswith("~")):
        raise yamlconfig.ConfigError(
            f"{where}: storage.bundles must be a folder, written in full, or a URL such as s3://bucket/prefix"
        )
    protocol, separator, _ = (storage.bundles or "").rpartition("::")[2].partition("://")
    if separator and protocol not in fsspec.available_protocols():
        raise yamlconfig.ConfigError(
            f"{where}: storage.bundles: nothing is known of {protocol}://: give a folder or s3://bucket/prefix"
        )
    shared_index = (storage.index or "").startswith("postgres")
    if not shared_index and (storage.queue or "").startswith(("postgres", "redis", "unix")):
        raise yamlconfig.ConfigError(
            f"{where}: storage.queue is shared but storage.index is not: give a postgresql:// URL for both"
        )
    if shared_index and storage.bundles is None:
        raise yamlconfig.ConfigError(
            f"{where}: storage.index is shared: storage.bundles must be a folder or store that all share"
        )


def _check_agents(agents: AgentsConfig, where: str) -> None:
    """Raises yamlconfig.ConfigError."""
    places: dict[object, int] = {}
    for number, text in enumerate(agents.nodes):
        try:
            agent = parse_agent(text, agents.port)
        except ValueError as error:
            raise yamlconfig.ConfigError(f"{where}: agents.nodes[{number}]: {error}") from error
        for place in (agent.node, (agent.host, agent.port)):
            if place is not None and places.setdefault(place, number) != number:
                raise yamlconfig.ConfigError(
                    f"{where}: agents.nodes[{number}]: {text!r} is there already, as agents.nodes[{places[place]}]"
                )
    for key in ("ca_file", "cert_file", "key_file", "server_name"):
        if getattr(agents, key) is not None and not agents.tls:
            raise yamlconfig.ConfigError(
                f"{where}: agents.{key} is given but agents are asked without TLS: add agents.tls: true"
            )
    if agents.key_file is not None and agents.cert_file is None:
        raise yamlconfig.ConfigError(f"{where}: agents.key_file is given without agents.cert_file")
