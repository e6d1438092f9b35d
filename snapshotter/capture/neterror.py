"""Why a request came to nothing, in the words of the operating system."""

from __future__ import annotations

import re


def why(error: BaseException) -> str:
    """`Connection refused` out of urllib3's nested texts."""
    cause = getattr(error, "reason", None) or error
    text = re.sub(r"\[Errno -?\d+\] ", "", str(cause).rpartition(": ")[2])
    return text or type(cause).__name__
