"""Sending HTTP requests at fixed moments over kept connections, cheaply enough not to measure itself.

One thread and one selector; whole requests made beforehand. A request that is due while all connections are
busy waits for one, and that counts as part of its answer time: a slow server does not slow the sender down.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Results:
    """Answer times in seconds, from the moment a request was due; statuses; the sender's own CPU time."""

    times: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0

    def quantile(self, q: float) -> float:
        return sorted(self.times)[min(int(q * len(self.times)), len(self.times) - 1)]

    def describe(self) -> str:
        parts = (
            f"{name} {self.quantile(q) * 1000:.1f} ms"
            for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1))
        )
        rate = len(self.times) / self.wall_seconds
        return (
            f"{', '.join(parts)}, {rate:.0f}/s (sender: {self.cpu_seconds / self.wall_seconds:.0%} of a core)"
        )


class _Connection:
    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self.open()

    def open(self) -> None:
        self.socket = socket.create_connection(self._address, timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = b""
        self.due = 0.0
        self.received = b""

    def send(self, request: bytes, due: float) -> None:
        self.request, self.due, self.received = request, due, b""
        self.socket.sendall(request)

    def read(self) -> int | None:
        """The status once the answer is whole, 0 where the server closed the connection."""
        try:
            data = self.socket.recv(65536)
        except ConnectionError:
            return 0
        if not data:
            return 0
        self.received += data
        head, end, body = self.received.partition(b"\r\n\r\n")
        if not end:
            return None
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        return int(head[9:12]) if len(body) >= int(length) else None


def run(
    address: tuple[str, int],
    request: Callable[[int], bytes],
    *,
    rate: float,
    count: int,
    connections: int = 8,
) -> Results:
    """Send `count` requests, `rate` a second; `request` makes the bytes of each, and must be quick."""
    results = Results()
    idle = deque(_Connection(address) for _ in range(connections))
    selector = selectors.DefaultSelector()
    for one in idle:
        selector.register(one.socket, selectors.EVENT_READ, one)
    cpu, start = time.process_time(), time.monotonic()
    sent = 0
    while len(results.times) < count:
        now = time.monotonic()
        while sent < count and idle and start + sent / rate <= now:
            idle.popleft().send(request(sent), start + sent / rate)
            sent += 1
        wait = start + sent / rate - now if sent < count and idle else 1.0
        for key, _ in selector.select(max(0.0, wait)):
            one: _Connection = key.data
            status = one.read()
            if status == 0:
                selector.unregister(one.socket)
                one.socket.close()
                pending, due = one.request, one.due
                one.open()
                selector.register(one.socket, selectors.EVENT_READ, one)
                if pending:  # the server had closed the kept connection just then
                    one.send(pending, due)
            elif status is not None:
                results.times.append(time.monotonic() - one.due)
                results.statuses[status] += 1
                one.request = b""
                idle.append(one)
    results.cpu_seconds = time.process_time() - cpu
    results.wall_seconds = time.monotonic() - start
    for one in idle:
        one.socket.close()
    selector.close()
    return results
