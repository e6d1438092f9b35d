"""Short stable names for logs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import PurePath


def labels(paths: Iterable[str], taken: Collection[str] = ()) -> dict[str, str]:
    """A name for each new path: its file name, with as many folders before it as tell it from the others.

    Names that were given once are in `taken` and stay as they are.
    """
    waiting = list(dict.fromkeys(paths))
    named: dict[str, str] = {}
    used = set(taken)
    length = 1
    while waiting:
        tails = {path: "/".join(PurePath(path).parts[-length:]).replace("//", "/") for path in waiting}
        counts: dict[str, int] = {}
        for tail in tails.values():
            counts[tail] = counts.get(tail, 0) + 1
        rest = []
        for path, tail in tails.items():
            whole = length >= len(PurePath(path).parts)
            if (counts[tail] == 1 and tail not in used) or whole:
                named[path] = tail
                used.add(tail)
            else:
                rest.append(path)
        waiting, length = rest, length + 1
    return named
