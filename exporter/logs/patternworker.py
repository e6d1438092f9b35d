"""Matches a user's expression in a process of its own, as one that backtracks for ever can only be killed.

Run as a script. On stdin: the pattern, then one text after another, each as four bytes of length (big-endian) and
UTF-8. On stdout, in the same form: `ready`, then for each text JSON, null or the groups iteration, total and epoch.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from typing import BinaryIO


def receive(stream: BinaryIO) -> str | None:
    """The next text; None at the end."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    return stream.read(struct.unpack(">I", head)[0]).decode("utf-8")


def send(stream: BinaryIO, text: str) -> None:
    data = text.encode("utf-8")
    stream.write(struct.pack(">I", len(data)) + data)
    stream.flush()


def main() -> None:
    pattern = re.compile(receive(sys.stdin.buffer) or "")
    send(sys.stdout.buffer, "ready")
    while (text := receive(sys.stdin.buffer)) is not None:
        match = pattern.search(text)
        groups = None if match is None else match.groupdict()
        send(sys.stdout.buffer, json.dumps(groups))


if __name__ == "__main__":
    main()
