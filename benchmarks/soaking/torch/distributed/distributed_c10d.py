"""Stands where torch's file of this name lies, for ranks that have no torch."""

from __future__ import annotations

import os


def all_reduce() -> None:
    """Wait for the others, for ever."""
    reading, _writing = os.pipe()
    os.read(reading, 1)
