"""Numbers as logs print them: `1,200`, `21.0`, `1.20k`, `1.20e+03`, `0005`."""

from __future__ import annotations

NUMBER = r"\d(?:[\d,]*\d)?(?:\.\d+)?(?:[kKMBG](?![A-Za-hj-z])|e\+\d+)?"
"""A counter's number; a suffix of a thousand, million or billion may stand behind it."""

_SUFFIX = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}


def count(text: str) -> int | None:
    """The number as a count; None where it has a fraction, as durations and losses have."""
    text = text.replace(",", "")
    factor = _SUFFIX.get(text[-1:])
    if factor is not None or "e+" in text:
        try:
            value = float(text) if factor is None else float(text[:-1]) * factor
        except ValueError:
            return None
        return round(value) if 0 <= value < 1e18 and (factor or value.is_integer()) else None
    if "." in text:
        whole, _, fraction = text.partition(".")
        if fraction.strip("0"):
            return None
        text = whole
    return int(text) if text.isdecimal() and len(text) < 19 else None
