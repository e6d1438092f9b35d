"""TLS of the HTTP server: its part of the web configuration, checked, and certificates that are read again."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import msgspec
from cheroot.errors import FatalSSLAlert
from cheroot.ssl.builtin import BuiltinSSLAdapter

from exporter.yamlconfig import ConfigError

_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`tls_server_config`: paths are relative to the file they stand in."""

    cert_file: str
    key_file: str
    client_ca_file: str | None = None
    client_auth_type: str = "NoClientCert"
    min_version: str = "TLS12"


class ReloadingAdapter(BuiltinSSLAdapter):
    """TLS whose certificate is read again when its file changes, so that a renewal needs no restart."""

    def __init__(self, path: Path, config: TlsConfig) -> None:
        self._certificate = (_beside(path, config.cert_file), _beside(path, config.key_file))
        super().__init__(*self._certificate)
        self.context = context_of(path, config)
        self._read_at = self._modified()

    def wrap(self, sock: Any) -> Any:
        modified = self._modified()
        if modified != self._read_at:
            try:
                self.context.load_cert_chain(*self._certificate, password="")
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


def context_of(path: Path, config: TlsConfig) -> ssl.SSLContext:
    """The TLS context of a configuration. Raises ConfigError."""
    if config.client_auth_type not in _CLIENT_AUTH:
        raise ConfigError(
            f"{path}: tls_server_config.client_auth_type: one of {', '.join(_CLIENT_AUTH)} expected, "
            f"got {config.client_auth_type!r}"
        )
    if config.min_version not in _VERSIONS:
        raise ConfigError(
            f"{path}: tls_server_config.min_version: one of {', '.join(_VERSIONS)} expected, "
            f"got {config.min_version!r}"
        )
    mode = _CLIENT_AUTH[config.client_auth_type]
    if (mode == ssl.CERT_NONE) != (config.client_ca_file is None):
        raise ConfigError(f"{path}: tls_server_config: client_ca_file and a client_auth_type go together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[config.min_version]
    files = {
        "cert_file": config.cert_file,
        "key_file": config.key_file,
        "client_ca_file": config.client_ca_file,
    }
    for key, name in files.items():
        if name is not None:
            _readable(f"{path}: tls_server_config.{key}", path.parent / name)
    try:
        context.load_cert_chain(
            _beside(path, config.cert_file),
            _beside(path, config.key_file),
            password="",  # otherwise OpenSSL asks the terminal for that of an encrypted key
        )
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{path}: tls_server_config: {config.cert_file} and {config.key_file} are no certificate and its key, "
            f"in PEM form and without passphrase: {error}"
        ) from error
    if config.client_ca_file is not None:
        try:
            context.load_verify_locations(_beside(path, config.client_ca_file))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{path}: tls_server_config.client_ca_file: {config.client_ca_file} holds no certificates in PEM "
                f"form: {error}"
            ) from error
    context.verify_mode = mode
    return context


def _readable(what: str, file: Path) -> None:
    """Raises ConfigError where it is not."""
    try:
        with file.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{what}: {file} cannot be read: {error.strerror}") from error


def _beside(path: Path, name: str) -> str:
    return str(path.parent / name)
