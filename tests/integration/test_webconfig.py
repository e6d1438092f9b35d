"""Serving with TLS, client certificates and basic auth as the web configuration says, on a real socket."""

from __future__ import annotations

import base64
import hmac
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from prometheus_client import CollectorRegistry
from werkzeug.test import Client

from exporter import server, webconfig
from exporter.yamlconfig import ConfigError
from tests.serving import hello, serving


def get(
    url: str, *, context: ssl.SSLContext | None = None, user: str | None = None
) -> tuple[int, bytes, Any]:
    request = urllib.request.Request(url)
    if user is not None:
        request.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers


def certificate(authority: trustme.CA, folder: Path) -> str:
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(folder / "server.key")
    issued.cert_chain_pems[0].write_to_path(folder / "server.crt")
    return "tls_server_config: {cert_file: server.crt, key_file: server.key"


def test_without_a_file_it_is_plain_http() -> None:
    with serving(None) as port:
        assert get(f"http://127.0.0.1:{port}/")[:2] == (200, b"hello")


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        ("/jobs/ns%2Fteam%2Fjob/latest", "/jobs/ns/team/job/latest"),
        ("/jobs/ns/team/latest?a=%2F", "/jobs/ns/team/latest"),
        ("/jobs/%252F/latest", "/jobs/%2F/latest"),
        ("/jobs/%C3%A9/latest", "/jobs/\u00e9/latest"),
    ],
)
def test_a_path_is_decoded_once_and_wholly(sent: str, seen: str) -> None:
    paths: list[str] = []

    def note(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        paths.append(environ["PATH_INFO"].encode("latin-1").decode())
        return hello(environ, start_response)

    with serving(None, note) as port:
        assert get(f"http://127.0.0.1:{port}{sent}")[0] == 200
    assert paths == [seen]


def test_basic_auth_lets_in_who_knows_the_password(tmp_path: Path) -> None:
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    path = tmp_path / "web.yml"
    path.write_text(
        f"basic_auth_users: {{ops: '{hashed}'}}\nhttp_server_config: {{headers: {{X-Frame-Options: deny}}}}\n"
    )
    with serving(path) as port:
        url = f"http://127.0.0.1:{port}/"
        assert get(url)[0] == 401
        assert get(url, user="ops:wrong")[0] == 401
        assert get(url, user="nobody:secret")[0] == 401
        assert get(url, user="ops:\x00")[0] == 401
        for _ in range(2):  # the second time from memory
            status, body, headers = get(url, user="ops:secret")
            assert (status, body) == (200, b"hello")
            assert headers["X-Frame-Options"] == "deny"


def test_a_renewed_certificate_is_served_without_a_restart(tmp_path: Path) -> None:
    first, second = trustme.CA(), trustme.CA()
    path = tmp_path / "web.yml"
    path.write_text(certificate(first, tmp_path) + "}\n")
    trust_first, trust_second = ssl.create_default_context(), ssl.create_default_context()
    first.configure_trust(trust_first)
    second.configure_trust(trust_second)
    with serving(path) as port:
        url = f"https://localhost:{port}/"
        assert get(url, context=trust_first)[1] == b"hello"
        certificate(second, tmp_path)
        assert get(url, context=trust_second)[1] == b"hello"


def test_client_certificates_are_required_where_the_file_says_so(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    path = tmp_path / "web.yml"
    path.write_text(
        certificate(authority, tmp_path)
        + ", client_ca_file: ca.crt, client_auth_type: RequireAndVerifyClientCert}\n"
    )
    with serving(path) as port:
        url = f"https://localhost:{port}/"
        known = ssl.create_default_context()
        authority.configure_trust(known)
        authority.issue_cert("agent").configure_cert(known)
        assert get(url, context=known)[1] == b"hello"
        for issuer in (None, stranger):
            context = ssl.create_default_context()
            authority.configure_trust(context)
            if issuer is not None:
                issuer.issue_cert("agent").configure_cert(context)
            with pytest.raises(OSError):
                get(url, context=context)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "basic_auth_users: {ops: plaintext}",
            "basic_auth_users.ops: not a bcrypt hash; make one with `htpasswd",
        ),
        ("tls_server_config: {cert_file: a, key_file: b}", "tls_server_config.cert_file: "),
        ("tls_server_config: {cert_file: a}", "missing required field `key_file`"),
        (
            "tls_server_config: {cert_file: a, key_file: b, client_auth_type: Maybe}",
            "client_auth_type: one of",
        ),
        ("tls_server_config: {cert_file: a, key_file: b, client_ca_file: c}", "go together"),
        (
            "tls_server_config: {cert_file: a, key_file: b, min_version: TLS10}",
            "min_version: one of TLS12, TLS13",
        ),
        ("http_server_config: {headers: {X-Other: a}}", "headers.X-Other: one of"),
        (
            'http_server_config: {headers: {X-Frame-Options: "a\\r\\nSet-Cookie: b"}}',
            "X-Frame-Options: one line",
        ),
        ("basic_auth_user: {}", "did you mean `basic_auth_users`?"),
    ],
)
def test_a_bad_file_is_refused_with_place_and_remedy(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "web.yml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        webconfig.load(path)
    assert str(caught.value).startswith(str(path))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{cert_file: server.crt, key_file: gone}", r"key_file: .*/gone cannot be read: No such file"),
        ("{cert_file: ., key_file: server.key}", r"cert_file: .* cannot be read: Is a directory"),
        (
            "{cert_file: server.crt, key_file: other.key}",
            "server.crt and other.key are no certificate and its key",
        ),
        ("{cert_file: server.crt, key_file: locked.key}", "locked.key are .*without passphrase"),
        ("{cert_file: junk, key_file: server.key}", "junk and server.key are no"),
        (
            "{cert_file: server.crt, key_file: server.key, client_ca_file: junk, "
            "client_auth_type: VerifyClientCertIfGiven}",
            "client_ca_file: junk holds no certificates",
        ),
    ],
)
def test_files_that_are_no_certificates_are_named(tmp_path: Path, text: str, words: str) -> None:
    authority = trustme.CA()
    certificate(authority, tmp_path)
    key = authority.issue_cert("localhost").private_key_pem
    key.write_to_path(tmp_path / "other.key")
    loaded = serialization.load_pem_private_key((tmp_path / "server.key").read_bytes(), None)
    (tmp_path / "locked.key").write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    (tmp_path / "junk").write_text("junk\n")
    path = tmp_path / "web.yml"
    path.write_text(f"tls_server_config: {text}\n")
    with pytest.raises(ConfigError, match=words) as caught:
        webconfig.load(path)
    assert str(caught.value).startswith(f"{path}: tls_server_config")


# cheroot 11 leaves the socket that it could not bind to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_taken_port_is_one_clear_error() -> None:
    with serving(None) as port:
        server = webconfig.server(hello, f"127.0.0.1:{port}", webconfig.WebConfig(), None)
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use: "):
            webconfig.bind(server)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("192.0.2.7:0", "192.0.2.7:0: Cannot assign requested address: give an address of this machine"),
        ("[2001:db8::7]:0", r"\[2001:db8::7\]:0: .*: give an address of this machine"),
        ("nobody.invalid:0", "nobody.invalid:0: .*: give an address of this machine"),
    ],
)
def test_an_address_of_another_machine_is_one_clear_error(address: str, words: str) -> None:
    server = webconfig.server(hello, address, webconfig.WebConfig(), None)
    with pytest.raises(ConfigError, match=f"^--web.listen-address: cannot listen on {words}"):
        webconfig.bind(server)


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("127.255.0.7", True),
        ("::1", True),
        ("0:0:0:0:0:0:0:1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("", False),
        ("0.0.0.0", False),
        ("::", False),
        ("::ffff:0.0.0.0", False),
        ("10.0.0.1", False),
        ("127.example.com", False),
        ("127.0.0.1.example.com", False),
        ("localhost.example.com", False),
    ],
)
def test_addresses_that_only_this_machine_can_reach(host: str, here: bool) -> None:
    assert webconfig.is_loopback(host) is here


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (":11028", "", 11028),
        ("127.0.0.1:80", "127.0.0.1", 80),
        ("[::1]:80", "::1", 80),
        ("localhost:0", "localhost", 0),
    ],
)
def test_listen_addresses(text: str, host: str, port: int) -> None:
    assert webconfig.parse_address(text) == (host, port)


@pytest.mark.parametrize(
    "text", ["", "11028", ":http", ":70000", "::1", "[::1]", "::1:80", ":-1", ":\u0663", "http://x:80"]
)
def test_bad_listen_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="write it as"):
        webconfig.parse_address(text)


def test_two_users_may_come_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    users = {
        name: bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode() for name in ("ann", "bob", "dan", "eve")
    }
    client = Client(webconfig.Gate(hello, webconfig.WebConfig(basic_auth_users=users)))

    def status(user: str) -> int:
        credentials = base64.b64encode(f"{user}:secret".encode()).decode()
        return client.get("/", headers={"Authorization": f"Basic {credentials}"}).status_code

    assert (status("ann"), status("bob")) == (200, 200)
    compare = hmac.compare_digest
    others = [status]

    def meanwhile(a: bytes, b: bytes) -> bool:
        if others:
            assert others.pop()("eve") == 200
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", meanwhile)
    assert status("dan") == 200


@pytest.mark.parametrize(
    ("address", "authenticated", "status"),
    [
        ("127.0.0.1", False, 200),
        ("::ffff:127.0.0.1", False, 200),
        ("::1", False, 200),
        ("192.0.2.1", False, 403),
        ("192.0.2.1", True, 200),
    ],
)
def test_the_exporter_is_reloaded_from_here_or_by_who_is_known(
    address: str, authenticated: bool, status: int
) -> None:
    app = server.create_app(
        CollectorRegistry(), node="n", sections=lambda: (), ready=lambda: True, reload=lambda: None
    )
    users = {"ops": bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()} if authenticated else {}
    gate = webconfig.Gate(app, webconfig.WebConfig(basic_auth_users=users))
    answer = Client(gate).post(
        "/-/reload",
        environ_base={"REMOTE_ADDR": address},
        headers={"Authorization": "Basic " + base64.b64encode(b"ops:secret").decode()},
    )
    assert answer.status_code == status
