"""Numbers as logs print them: `1,200`, `21.0`, `1.20k`, `1.20e+03`, `0005`."""

from __future__ import annotations

NUMBER = r"\d(?:[\d,]*\d)?(?:\.\d+)?(?:[kKMBG](?![A-Za-hj-z])|e\+\d+)?"
"""A counter's number; a suffix of a thousand, million or billion may stand behind it."""

_SUFFIX = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}


def count(text: str) -> int | None:
    """The number as a count; None where it has a fraction, as durations and losses have."""
    text = text.replace(",", "")
    if "e+" in text:
        value = float(text)
        return int(value) if value.is_integer() and value < 1e18 else None
    factor = _SUFFIX.get(text[-1:])
    if factor is not None:
        try:
            return round(float(text[:-1]) * factor)
        except ValueError:
            return None
    if "." in text:
        whole, _, fraction = text.partition(".")
        if fraction.strip("0"):
            return None
        text = whole
    return int(text) if text.isdecimal() and len(text) < 19 else None
