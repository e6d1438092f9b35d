"""Who may change things: a bearer token from a file, compared in constant time.

With a token file, the webhook and every other route that changes something want
`Authorization: Bearer <token>`; reading is open unless the web configuration asks for a password or a client
certificate. Where the web configuration has `basic_auth_users`, every request has already shown a password in
the same header, and no token is wanted on top.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from werkzeug.wrappers import Request

from exporter.yamlconfig import ConfigError
from snapshotter.errors import Forbidden, Unauthorized

_MAX_TOKEN_BYTES = 4096
_TOKEN = re.compile(rb"[\x21-\x7e]+")


class TokenFile:
    """A secret in a file; a changed file is read again, so that a rotation needs no restart."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError where the file cannot be read, is empty or can be read by everyone."""
        self._path = path
        self._lock = threading.Lock()
        self._token, self._seen = self._read()

    def matches(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._current())

    @property
    def token(self) -> str:
        """The secret, to be sent to others."""
        return self._current().decode()

    def _current(self) -> bytes:
        with self._lock:
            try:
                if _signature(self._path.stat()) != self._seen:
                    self._token, self._seen = self._read()
            except (OSError, ConfigError):
                pass  # half-replaced by a rotation: the old secret holds until the new one can be read
            return self._token

    def _read(self) -> tuple[bytes, tuple[int, ...]]:
        try:
            with self._path.open("rb") as file:
                info = os.fstat(file.fileno())
                token = file.read(_MAX_TOKEN_BYTES + 1).strip()
        except OSError as error:
            raise ConfigError(
                f"{self._path}: the token cannot be read: {error.strerror}; name a file that holds one, e.g. of"
                " `openssl rand -hex 32 > FILE; chmod 600 FILE`"
            ) from error
        if stat.S_IMODE(info.st_mode) & 0o007:
            raise ConfigError(
                f"{self._path}: everyone on this machine can use this token: chmod o= {self._path}"
            )
        if len(token) > _MAX_TOKEN_BYTES or not _TOKEN.fullmatch(token):
            raise ConfigError(
                f"{self._path}: not a token: one line of printable characters is expected, as of"
                " `openssl rand -hex 32`"
            )
        return token, _signature(info)


class Auth:
    """Decides about one request."""

    def __init__(self, token: TokenFile | None, *, basic_auth: Callable[[], bool] = lambda: False) -> None:
        """`basic_auth`: whether the server in front of the routes already asked for a password."""
        self._token = token
        self._basic_auth = basic_auth

    @property
    def wants_token(self) -> bool:
        return self._token is not None and not self._basic_auth()

    def require(self, request: Request) -> None:
        """Raises Unauthorized without the token, Forbidden if a page of another site sent the request."""
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise Forbidden("a page of another site may not do this")
        origin = request.headers.get("Origin")
        if origin is not None and place_of(origin) != request.host:
            raise Forbidden("a page of another site may not do this")
        if self._token is None or self._basic_auth():
            return
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not self._token.matches(given.strip()):
            raise Unauthorized("no token, or a wrong one", "send Authorization: Bearer <token>")


def place_of(address: str) -> str:
    """Host and port of an address; empty for what is none, such as `null`."""
    try:
        return urlsplit(address).netloc
    except ValueError:
        return ""


def who(request: Request) -> str:
    """Who asked, for the audit log."""
    user = request.authorization.username if request.authorization is not None else None
    address = request.remote_addr or "unknown"
    return f"{user}@{address}" if user else address


def _signature(info: os.stat_result) -> tuple[int, ...]:
    return info.st_mtime_ns, info.st_size, info.st_ino, info.st_mode
