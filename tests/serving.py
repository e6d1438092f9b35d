"""The HTTP server of our programs with an application of the test, on a free port of loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from exporter import admission, webconfig


def hello(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Reads the whole request and greets."""
    chunked = "HTTP_TRANSFER_ENCODING" in environ
    length = None if chunked else int(environ.get("CONTENT_LENGTH") or 0)
    environ["wsgi.input"].read(length)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "5")])
    return [b"hello"]


@contextmanager
def serving(
    path: Path | None = None, app: webconfig.WsgiApp = hello, shared: admission.Admission | None = None
) -> Iterator[int]:
    """The port of a server of two threads with this web configuration; `shared` counts its connections."""
    config = webconfig.load(path)
    server = webconfig.server(webconfig.Gate(app, config), "127.0.0.1:0", config, path, threads=2)
    if shared is not None:
        server.admission = shared
    webconfig.bind(server)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server.bind_addr[1]
    finally:
        server.stop()
        thread.join()
