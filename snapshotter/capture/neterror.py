"""Why a request came to nothing, in words for people: the operating system's, or what an answer was."""

from __future__ import annotations

import http.client
import re

import urllib3

# Of urllib3's nested errors the first that matches; RemoteDisconnected is a BadStatusLine and a reset as well.
_WORDS: tuple[tuple[type[BaseException], str], ...] = (
    (http.client.RemoteDisconnected, "the connection was closed without an answer"),
    (http.client.IncompleteRead, "the answer broke off"),
    (http.client.BadStatusLine, "what answers there does not speak HTTP"),
    (http.client.HTTPException, "the headers of the answer are too many or too long"),
    (urllib3.exceptions.DecodeError, "the answer cannot be unpacked"),
)


def why(error: BaseException) -> str:
    """`Connection refused` out of urllib3's nested texts."""
    cause = getattr(error, "reason", None) or error
    for kind, words in _WORDS:
        if any(isinstance(one, kind) for one in (cause, *getattr(cause, "args", ()))):
            return words
    for one in getattr(cause, "args", ()):
        if isinstance(one, ConnectionError) and one.strerror:
            return one.strerror
    text = re.sub(r"\[Errno -?\d+\] ", "", str(cause).rpartition(": ")[2])
    return text or type(cause).__name__
