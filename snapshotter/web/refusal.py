"""What an error adds to its answer."""

from __future__ import annotations

from snapshotter.errors import SnapshotterError


def headers_of(error: SnapshotterError) -> tuple[tuple[str, str], ...]:
    """How to come in, or when to come back."""
    if error.status == 401:
        return (("WWW-Authenticate", 'Bearer realm="hangscope"'),)
    if error.status == 503:
        return (("Retry-After", "10"),)
    return ()
