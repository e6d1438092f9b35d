"""The audit log: one line for everything that was asked for and done, with who, why and what."""

from __future__ import annotations

import json
import logging

_log = logging.getLogger("snapshotter.audit")
_log.setLevel(logging.INFO)  # whatever else is logged


def audit(what: str, **facts: object) -> None:
    """Write one line, as `what key=value …`; values are JSON: nothing from outside forges a line."""
    pairs = (f"{key}={json.dumps(value, default=str)}" for key, value in facts.items())
    _log.info("%s %s", what, " ".join(pairs))
