"""Asking Prometheus one instant query (HTTP API v1)."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import urllib3

from snapshotter.capture.neterror import why

_LARGEST = 256 * 1024 * 1024  # bytes


class PrometheusError(RuntimeError):
    """No answer that can be used; the text names the server and says why."""


@dataclass(frozen=True, slots=True)
class Series:
    """One element of an instant vector."""

    labels: dict[str, str]
    value: float


class _Result(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(msgspec.Struct):
    result: list[_Result]


class _Reply(msgspec.Struct):
    status: str = ""
    data: _Data | None = None
    error: str = ""


class Prometheus:
    """A Prometheus, or what speaks its API. Safe to use from several threads."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        pool: urllib3.PoolManager | None = None,
        timeout: float = 10.0,
    ) -> None:
        """`url` is the server's, with the path it lies under; `timeout` seconds bound each request."""
        self._url = url.rstrip("/")
        self._token = token
        self._pool = pool or urllib3.PoolManager(retries=False)
        self._timeout = timeout

    def query(self, expression: str) -> tuple[Series, ...]:
        """The instant vector of an expression, now. Raises PrometheusError."""
        headers = {"Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            # POST, as expressions may be longer than an address may.
            reply = self._pool.request(
                "POST",
                f"{self._url}/api/v1/query",
                fields={"query": expression, "timeout": f"{self._timeout:g}s"},
                encode_multipart=False,
                headers=headers,
                timeout=urllib3.Timeout(total=self._timeout),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            try:
                body = reply.read(_LARGEST)
            finally:
                reply.release_conn()
        except urllib3.exceptions.HTTPError as error:
            raise PrometheusError(f"Prometheus at {self._url} does not answer: {why(error)}") from error
        return self._understand(reply.status, body)

    def _understand(self, status: int, body: bytes) -> tuple[Series, ...]:
        try:
            answer = msgspec.json.decode(body, type=_Reply)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PrometheusError(
                f"{self._url}/api/v1/query answered {status} and not as Prometheus does"
            ) from error
        if answer.status != "success" or answer.data is None:
            said = " ".join(answer.error.split())[:300]
            raise PrometheusError(f"Prometheus at {self._url} answered {status}: {said or 'no reason'}")
        return tuple(Series(one.metric, float(one.value[1])) for one in answer.data.result)


def quote(text: str) -> str:
    """A string literal of PromQL."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
