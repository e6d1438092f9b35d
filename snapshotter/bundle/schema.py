"""What is in a bundle: the manifest's fields, the names of its files, and which names are safe.

    manifest.json          what was asked, when, and what became of every target; written last
    nodes/<node>.json.gz   what each node answered, verbatim
    nccl/<node>.txt        the RAS reply of the node, byte for byte
    report.json            the analysis
    extracts-1/…json       what pages show of the above, small; may be missing

Fields are only ever added, with defaults: every later version reads every earlier bundle.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from snapshotter.stacks.model import Outcome, Role

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
REPORT = "report.json"
EXTRACTS = "extracts"

Trigger = Literal["alert", "manual", "schedule"]

# What became of a capture: of all processes a stack; of some; no process was there; nothing could be taken.
CaptureOutcome = Literal["complete", "partial", "empty", "failed"]

# What neither PostgreSQL's text nor UTF-8 can hold.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_CAPTURE_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{12}\Z", re.ASCII)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_FILE = re.compile(
    r"(?:nodes/[A-Za-z0-9][\w.~-]{0,150}\.json\.gz|nccl/[A-Za-z0-9][\w.~-]{0,150}\.txt"
    rf"|{EXTRACTS}-\d{{1,4}}/[a-z]{{1,20}}\.json)\Z",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class AlertInfo:
    """The alert that asked for a capture, as Alertmanager sent it; long values are cut."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    starts_at: float | None = None  # Unix seconds
    fingerprint: str = ""
    generator_url: str = ""
    external_url: str = ""
    receiver: str = ""


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """One capture that was asked for: who, why, of what."""

    capture_id: str
    job_id: str  # empty: whatever training job this node runs
    trigger: Trigger
    reason: str
    requested_by: str
    requested_at: float  # Unix seconds
    incident_id: str | None = None
    number: int = 1  # within its incident
    alert: AlertInfo | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """One process that was to be captured, and what became of it."""

    node: str
    pid: int
    role: Role
    rank: int | None
    outcome: Outcome
    error: str | None = None


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One node of a bundle: where its answer lies and how it went."""

    node: str
    outcome: Outcome
    file: str  # nodes/<name>.json.gz
    started_at: float
    finished_at: float
    error: str | None = None
    nccl_file: str | None = None  # nccl/<name>.txt
    expected_ranks: tuple[int, ...] = ()  # without a process there, as the node or the centre knew


@dataclass(frozen=True, slots=True)
class VerdictSummary:
    """The part of the report's verdict that lists and metrics show."""

    hung: bool | None = None
    scope: str = "undetermined"
    cause: str = "unknown"
    culprit_ranks: str = ""
    culprit_nodes: tuple[str, ...] = ()
    confidence: float = 0.0
    headline: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """manifest.json."""

    request: CaptureRequest
    started_at: float
    finished_at: float
    outcome: CaptureOutcome
    nodes: tuple[NodeEntry, ...] = ()
    targets: tuple[Target, ...] = ()
    verdict: VerdictSummary | None = None  # None: the analysis failed
    error: str | None = None
    pinned: bool = False
    job_id: str = ""  # as the nodes answered, where the request named none
    schema_version: int = SCHEMA_VERSION

    @property
    def capture_id(self) -> str:
        return self.request.capture_id


def new_capture_id(now: float, after: str = "") -> str:
    """An id that sorts by time and is safe in paths and addresses: `20261130T012233Z-<12 hex digits>`.

    The first three hex digits are the fraction of the second, in 1/4096. It sorts after the id `after` even
    where the clock was set back since.
    """
    second = datetime.fromtimestamp(int(now), UTC).strftime("%Y%m%dT%H%M%SZ")
    made = f"{second}-{int((now % 1) * 4096):03x}{secrets.randbits(36):09x}"
    if made > after:
        return made
    then = datetime.strptime(after[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return new_capture_id(then.timestamp() + (int(after[17:20], 16) + 1) / 4096)


def with_pin(manifest: Manifest, pinned: bool) -> Manifest:
    return replace(manifest, pinned=pinned)


def is_capture_id(text: str) -> bool:
    return _CAPTURE_ID.match(text) is not None


def is_bundle_file(name: str) -> bool:
    """Whether a path inside a bundle is one that a bundle may hold; anything else is never opened."""
    return name in (MANIFEST, REPORT) or _FILE.match(name) is not None


def is_extract(name: str) -> bool:
    """Whether a file of a bundle can be made of the others."""
    return name.startswith(f"{EXTRACTS}-")


def file_stem(node: str) -> str:
    """A file name for a node: the node's own where that is a plain name, else a readable part and a hash.

    Node names come from outside; the result holds no separator and no leading dot.
    """
    if _PLAIN_NAME.match(node) and len(node) <= 100:
        return node
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", node)[:40].strip("-") or "node"
    if not readable[0].isalnum():
        readable = "node" + readable
    return f"{readable}~{hashlib.sha256(node.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def storable(text: str) -> str:
    """The text without what a database or UTF-8 cannot hold; U+FFFD stands in its place."""
    return _UNSTORABLE.sub("\ufffd", text)


def verdict_summary(report: dict[str, Any]) -> VerdictSummary:
    """The summary of a report's verdict (`report.json` as a dict)."""
    verdict = report["verdict"]
    return VerdictSummary(
        hung=verdict["hung"],
        scope=verdict["scope"],
        cause=verdict["cause"],
        culprit_ranks=verdict["culprit_ranks"],
        culprit_nodes=tuple(map(storable, verdict["culprit_nodes"])),
        confidence=verdict["confidence"],
        headline=storable(verdict["headline"]),
    )
