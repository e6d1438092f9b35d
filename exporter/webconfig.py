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
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import bcrypt
import msgspec
from cheroot import wsgi
from cheroot.errors import FatalSSLAlert
from cheroot.ssl.builtin import BuiltinSSLAdapter

from exporter import yamlconfig
from exporter.admission import Admission
from exporter.connection import LARGEST_HEAD, Connection
from exporter.yamlconfig import ConfigError

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_HEADERS = frozenset(
    (
        "Content-Security-Policy",
        "Strict-Transport-Security",
        "X-Content-Type-Options",
        "X-Frame-Options",
        "X-XSS-Protection",
    )
)
_AUTHENTICATED = "hangscope.authenticated"
# Checked when the user is unknown, so that the time of the answer does not tell which users exist.
_NOBODY = bcrypt.hashpw(b"nobody", bcrypt.gensalt(rounds=10))


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`tls_server_config`: paths are relative to the file they stand in."""

    cert_file: str
    key_file: str
    client_ca_file: str | None = None
    client_auth_type: str = "NoClientCert"
    min_version: str = "TLS12"


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
    for header in config.http_server_config.headers:
        if header not in _HEADERS:
            raise ConfigError(
                f"{path}: http_server_config.headers.{header}: one of {', '.join(sorted(_HEADERS))} expected"
            )
    if config.tls_server_config is not None:
        _context(path, config.tls_server_config)
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
    if wrong_host or not colon or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--web.listen-address {text}: write it as :PORT, HOST:PORT or [IPV6]:PORT")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    return host in ("localhost", "::1") or host.removeprefix("::ffff:").startswith("127.")


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
        if any(hmac.compare_digest(digest, known) for known in self._known):
            return True
        try:
            matches = bcrypt.checkpw(password[:72], hashed.encode() if hashed else _NOBODY)
        except ValueError:  # a NUL byte in the password
            return False
        if hashed is None or not matches:
            return False
        self._known.add(digest)
        return True


class _ReloadingAdapter(BuiltinSSLAdapter):
    """TLS whose certificate is read again when its file changes, so that a renewal needs no restart."""

    def __init__(self, path: Path, config: TlsConfig) -> None:
        self._certificate = (_beside(path, config.cert_file), _beside(path, config.key_file))
        super().__init__(*self._certificate)
        self.context = _context(path, config)
        self._read_at = self._modified()

    def wrap(self, sock: Any) -> Any:
        modified = self._modified()
        if modified != self._read_at:
            try:
                self.context.load_cert_chain(*self._certificate)
                self._read_at = modified
            except (OSError, ssl.SSLError):
                pass  # half-written by the renewal: the old one serves until the pair fits
        try:
            # The handshake is the connection's: the loop that accepts must not wait for anybody.
            return self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False), {}
        except OSError as error:  # it has gone already
            raise FatalSSLAlert(*error.args) from error

    def _modified(self) -> tuple[float, ...]:
        try:
            return tuple(Path(name).stat().st_mtime for name in self._certificate)
        except OSError:
            return ()


class _Server(wsgi.Server):
    """cheroot's, with what its connections share."""

    admission: Admission


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
        made.ssl_adapter = _ReloadingAdapter(path, config.tls_server_config)
    return made


def bind(made: Any) -> None:
    """Bind and listen; a machine without IPv6 gets the IPv4 wildcard. Raises ConfigError where it cannot."""
    try:
        made.prepare()
    except OSError as error:
        if made.bind_addr[0] != "::":
            raise ConfigError(f"cannot listen on {made.bind_addr[0]}:{made.bind_addr[1]}: {error}") from error
        made.bind_addr = ("0.0.0.0", made.bind_addr[1])
        bind(made)


def _beside(path: Path, name: str) -> str:
    return str(path.parent / name)


def _context(path: Path, config: TlsConfig) -> ssl.SSLContext:
    """The TLS context of a configuration. Raises ConfigError."""
    if config.client_auth_type not in _CLIENT_AUTH:
        raise ConfigError(
            f"{path}: tls_server_config.client_auth_type: one of {', '.join(_CLIENT_AUTH)} expected, "
            f"got {config.client_auth_type!r}"
        )
    if config.min_version not in _VERSIONS:
        raise ConfigError(f"{path}: tls_server_config.min_version: one of {', '.join(_VERSIONS)} expected")
    mode = _CLIENT_AUTH[config.client_auth_type]
    if (mode == ssl.CERT_NONE) != (config.client_ca_file is None):
        raise ConfigError(f"{path}: tls_server_config: client_ca_file and a client_auth_type go together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[config.min_version]
    try:
        context.load_cert_chain(_beside(path, config.cert_file), _beside(path, config.key_file))
        if config.client_ca_file is not None:
            context.load_verify_locations(_beside(path, config.client_ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{path}: tls_server_config: certificate or key cannot be used: {error}") from error
    context.verify_mode = mode
    return context
