"""Serving HTTP: listen addresses, and TLS and basic auth from a web configuration file.

The file has exporter-toolkit's form (`tls_server_config`, `basic_auth_users`, `http_server_config.headers`),
so that `promtool check web-config` and what people know of other exporters hold. Both programs serve through
here.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import bcrypt
import msgspec
from cheroot import wsgi

from exporter import yamlconfig
from exporter.admission import Admission
from exporter.connection import LARGEST_HEAD, Connection
from exporter.tls import ReloadingAdapter, TlsConfig, context_of
from exporter.yamlconfig import ConfigError

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_HEADERS = frozenset(
    (
        "Content-Security-Policy",
        "Strict-Transport-Security",
        "X-Content-Type-Options",
        "X-Frame-Options",
        "X-XSS-Protection",
    )
)
_REASON = re.compile(r"\[Errno -?\d+\] ([^()]+)")
_PORT = re.compile(r"[0-9]{1,5}")
_NO_CONTROL = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
_AUTHENTICATED = "hangscope.authenticated"
# Checked when the user is unknown, so that the time of the answer does not tell which users exist.
_NOBODY = bcrypt.hashpw(b"nobody", bcrypt.gensalt(rounds=10))


class HttpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`http_server_config`; `http2` is accepted for the form's sake: this server speaks HTTP/1.1."""

    http2: bool = True
    headers: dict[str, str] = msgspec.field(default_factory=dict)


class WebConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    tls_server_config: TlsConfig | None = None
    http_server_config: HttpConfig = HttpConfig()
    basic_auth_users: dict[str, str] = msgspec.field(default_factory=dict)  # name -> bcrypt hash

    @property
    def authenticates(self) -> bool:
        """Whether a caller must prove who it is before any route answers."""
        tls = self.tls_server_config
        return bool(self.basic_auth_users) or (
            tls is not None and tls.client_auth_type == "RequireAndVerifyClientCert"
        )


def load(path: Path | None) -> WebConfig:
    """Read and check the file; no file means plain HTTP. Raises ConfigError with place and remedy."""
    if path is None:
        return WebConfig()
    config = yamlconfig.load(path, WebConfig)
    for user, hashed in config.basic_auth_users.items():
        try:
            bcrypt.checkpw(b"", hashed.encode())
        except ValueError as error:
            raise ConfigError(
                f"{path}: basic_auth_users.{user}: not a bcrypt hash; make one with `htpasswd -nBC 10 {user}`"
            ) from error
    for header, value in config.http_server_config.headers.items():
        if not _NO_CONTROL.fullmatch(value):
            raise ConfigError(f"{path}: http_server_config.headers.{header}: one line of text is expected")
        if header not in _HEADERS:
            raise ConfigError(
                f"{path}: http_server_config.headers.{header}: one of {', '.join(sorted(_HEADERS))} expected"
            )
    if config.tls_server_config is not None:
        context_of(path, config.tls_server_config)
    return config


def parse_address(text: str) -> tuple[str, int]:
    """`:11028`, `127.0.0.1:11028` or `[::1]:11028` as (host, port), host empty: every address.

    Raises ConfigError.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    wrong_host = ":" in host and not bracketed
    if wrong_host or not colon or not _PORT.fullmatch(port) or int(port) > 65535:
        raise ConfigError(f"--web.listen-address {text!r}: write it as :PORT, HOST:PORT or [IPV6]:PORT")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address; of names `localhost` alone is taken for one that is so."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def is_authenticated(environ: dict[str, Any]) -> bool:
    """Whether the gate lets in only who proves who he is, and so whoever asks has done so."""
    return bool(environ.get(_AUTHENTICATED, False))


class Gate:
    """WSGI middleware: basic auth and the configured headers, by the configuration in force."""

    def __init__(self, app: WsgiApp, config: WebConfig) -> None:
        self._app = app
        self.config = config
        # Checking bcrypt costs some 50 ms by design; what once matched is known by its digest.
        self._known: set[bytes] = set()

    def replace(self, config: WebConfig) -> None:
        """Put a re-read configuration into force."""
        self._known.clear()
        self.config = config

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        # cheroot leaves %2F in PATH_INFO; WSGI (PEP 3333) wants the path decoded once and wholly.
        uri = environ.get("REQUEST_URI", "")
        if uri.startswith("/"):
            environ["PATH_INFO"] = unquote_to_bytes(uri.partition("?")[0]).decode("latin-1")
        extra = list(self.config.http_server_config.headers.items())

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start_response(status, headers + extra, *rest)

        environ[_AUTHENTICATED] = self.config.authenticates
        if self.config.basic_auth_users and not self._allowed(environ.get("HTTP_AUTHORIZATION", "")):
            start(
                "401 Unauthorized",
                [
                    ("Content-Type", "text/plain; charset=utf-8"),
                    ("WWW-Authenticate", 'Basic realm="hangscope"'),
                ],
            )
            return [b"401: user name and password of the web configuration are needed\n"]
        return self._app(environ, start)

    def _allowed(self, header: str) -> bool:
        scheme, _, encoded = header.partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            user, _, password = base64.b64decode(encoded, validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return False
        users = self.config.basic_auth_users
        hashed = users.get(user.decode(errors="replace"))
        digest = hashlib.sha256(user + b":" + password + (hashed or "").encode()).digest()
        if any(hmac.compare_digest(digest, known) for known in tuple(self._known)):
            return True
        try:
            matches = bcrypt.checkpw(password[:72], hashed.encode() if hashed else _NOBODY)
        except ValueError:  # a NUL byte in the password
            return False
        if hashed is None or not matches:
            return False
        self._known.add(digest)
        return True


class _Server(wsgi.Server):
    """cheroot's, with what its connections share."""

    admission: Admission

    def put_conn(self, conn: Any) -> None:
        """Keep a connection for its next request. A server that stops meanwhile would end cheroot's thread."""
        try:
            super().put_conn(conn)
        except ValueError:  # nobody waits for requests any more
            if self.ready:
                raise
            conn.close()


def server(app: WsgiApp, address: str, config: WebConfig, path: Path | None, *, threads: int = 10) -> Any:
    """A cheroot server for `bind()` and then `serve()`; port 0 takes a free one (`bind_addr` tells)."""
    host, port = parse_address(address)
    made = _Server((host or "::", port), app, numthreads=threads, server_name="hangscope")
    made.ConnectionClass = Connection
    made.admission = Admission(threads)
    made.max_request_header_size = LARGEST_HEAD
    made.shutdown_timeout = 1
    made.keep_alive_conn_limit = (
        100  # with cheroot's 10 the eleventh client that keeps its connection is reset
    )
    if config.tls_server_config is not None and path is not None:
        made.ssl_adapter = ReloadingAdapter(path, config.tls_server_config)
    return made


def bind(made: Any) -> None:
    """Bind and listen; a machine without IPv6 gets the IPv4 wildcard. Raises ConfigError where it cannot."""
    try:
        made.prepare()
    except OSError as error:
        if made.bind_addr[0] != "::":
            host, port = made.bind_addr
            where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            reasons = _REASON.findall(str(error)) or [str(error)]  # cheroot's text is of all it tried
            raise ConfigError(
                f"--web.listen-address: cannot listen on {where}: {reasons[-1]}: give an address of this machine "
                "and a port that is free"
            ) from error
        made.bind_addr = ("0.0.0.0", made.bind_addr[1])
        bind(made)
