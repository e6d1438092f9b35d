"""Data as JSON."""

from __future__ import annotations

import json
import os
from typing import Any

import msgspec


def encode(value: Any) -> bytes:
    """JSON; bytes of a command line or a path that are no UTF-8 become question marks."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        plain = json.dumps(msgspec.to_builtins(value), ensure_ascii=False, separators=(",", ":"))
        return plain.encode("utf-8", "replace")


def name_as_text(name: str) -> str:
    """The name of a file as text; bytes in it that are no UTF-8 become U+FFFD."""
    return os.fsencode(name).decode("utf-8", "replace")
