"""Data as JSON."""

from __future__ import annotations

import json
from typing import Any

import msgspec


def encode(value: Any) -> bytes:
    """JSON; bytes of a command line or a path that are no UTF-8 become question marks."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        plain = json.dumps(msgspec.to_builtins(value), ensure_ascii=False, separators=(",", ":"))
        return plain.encode("utf-8", "replace")
