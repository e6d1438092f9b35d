"""Frameworks by the marks that their logs bear."""

from __future__ import annotations

import re

_MARKS = (
    ("megatron-lm", r"elapsed time per iteration \(ms\)|consumed samples:"),
    ("huggingface", r"\{'loss': |'train_runtime'|\[transformers\]|\[INFO\|trainer\.py"),
    ("lightning", r"`?Trainer\.fit`|Sanity Checking|pytorch_lightning|lightning/pytorch|\bGPU available: "),
)
_COMPILED = tuple((name, re.compile(mark)) for name, mark in _MARKS)


def recognise(text: str) -> str:
    """The framework whose mark a record bears; empty where it bears none."""
    for name, mark in _COMPILED:
        if mark.search(text):
            return name
    return ""
