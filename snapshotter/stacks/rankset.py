"""Sets of ranks as Python integers used as bit sets: bit N stands for rank N.

Union, intersection and difference are `|`, `&` and `& ~`; the size is `int.bit_count()`. In text, consecutive
ranks fold to `first-last` (both included) and groups are joined by `/`: `60-62/65`. The empty set is "".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

RankSet: TypeAlias = int

EMPTY: RankSet = 0

# No job has more; a hostile name like rank-99999999999 must not cost gigabytes.
MAX_RANK = (1 << 20) - 1

_NUMBER = re.compile(r"\d{1,7}", re.ASCII)
_RUN = re.compile("1+")
_GROUP = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?", re.ASCII)


def check(rank: int) -> int:
    """The rank itself, if it can be one. Raises ValueError."""
    if not 0 <= rank <= MAX_RANK:
        raise ValueError(f"rank {rank} is not between 0 and {MAX_RANK}")
    return rank


def number(text: str | None) -> int | None:
    """The rank that a text holds; None where it holds none that can be."""
    rank = int(text) if text is not None and _NUMBER.fullmatch(text) else None
    return rank if rank is not None and rank <= MAX_RANK else None


def of(ranks: Iterable[int]) -> RankSet:
    """The set of these ranks. Raises ValueError for a number that cannot be a rank."""
    members = ranks if isinstance(ranks, (list, tuple, set, frozenset, range)) else list(ranks)
    if not members:
        return EMPTY
    highest = check(max(members))
    check(min(members))
    if len(members) == 1:
        return 1 << highest
    if len(members) > 64 and len(set(members)) == highest - min(members) + 1:
        return span(min(members), highest)
    octets = bytearray((highest >> 3) + 1)
    for rank in members:
        octets[rank >> 3] |= 1 << (rank & 7)
    return int.from_bytes(octets, "little")


def span(first: int, last: int) -> RankSet:
    """Ranks first to last, both included; empty where last is below first."""
    return ((1 << (last - first + 1)) - 1) << first if last >= first else EMPTY


def union(sets: Iterable[RankSet]) -> RankSet:
    """All ranks of all sets."""
    out = EMPTY
    for ranks in sets:
        out |= ranks
    return out


def runs(ranks: RankSet) -> Iterator[tuple[int, int]]:
    """Consecutive ranks as (first, last), both included, ascending."""
    bits = format(ranks, "b")[::-1]
    for match in _RUN.finditer(bits):
        yield match.start(), match.end() - 1


def members(ranks: RankSet) -> Iterator[int]:
    """The ranks in ascending order."""
    for first, last in runs(ranks):
        yield from range(first, last + 1)


def lowest(ranks: RankSet) -> int | None:
    """The lowest rank, None of the empty set."""
    return (ranks & -ranks).bit_length() - 1 if ranks else None


def fold(ranks: RankSet) -> str:
    """`0-5/8`; "" of the empty set."""
    return "/".join(str(a) if a == b else f"{a}-{b}" for a, b in runs(ranks))


def parse(text: str) -> RankSet:
    """The set that `fold` wrote, its groups in any order. Raises ValueError naming what is wrong."""
    if not text:
        return EMPTY
    out = EMPTY
    for group in text.split("/"):
        match = _GROUP.fullmatch(group)
        if match is None:
            raise ValueError(f"{group[:40]!r} is no rank and no range of ranks like 40-47")
        first = check(int(match[1]))
        last = check(int(match[2])) if match[2] else first
        if last < first:
            raise ValueError(f"the range {group!r} ends before it begins")
        out |= span(first, last)
    return out
