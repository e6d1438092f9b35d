"""The chain with the shipped rules, their times shortened, and a chat that keeps what Alertmanager tells it."""

from __future__ import annotations

import html
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from standalone import chain as standalone
from standalone import processes
from standalone.chain import Chain, Settings, get_json
from tests.running import wait_for as wait_until

RULES = Path(__file__).parents[2] / "rules"
PATIENCE_SECONDS = 240.0

# What is waited for in the shipped files, and here. Expressions and annotations are otherwise as shipped.
_SHORTER = (
    (r"(?m)^(\s+for: )(?!0s$)\w+$", r"\g<1>1s"),
    (r"_longest_seconds\) > \d+", "_longest_seconds) > 2"),
    (r"(_longest_seconds\)\n\s+> bool\n\s+)30", r"\g<1>2"),
    (r"communicator_stalled_seconds\) > 120", "communicator_stalled_seconds) > 30"),
    (r"(reader_last_success_timestamp_seconds) > 900", r"\1 > 35"),  # the slowest polls every 30 s
    (r"group_wait: 10s", "group_wait: 2s"),
    (r"group_interval: 1m", "group_interval: 5s"),
)
_SPEED = r"(?m)^.*(?:rate30m|iterations_total\[).*$"  # compared over hours
_HOURS_IN_SECONDS = {"6h": "180s", "1h": "30s", "30m": "15s"}


def shortened(files: dict[str, str]) -> dict[str, str]:
    """The rules by file name, with every wait of seconds or more cut down."""
    for pattern, replacement in _SHORTER:
        assert any(re.search(pattern, text) for text in files.values()), pattern
        files = {name: re.sub(pattern, replacement, text) for name, text in files.items()}

    def compare_seconds(found: re.Match[str]) -> str:
        return re.sub(r"(?<=\[)\w+(?=\])|(?<=offset )\w+", lambda one: _HOURS_IN_SECONDS[one[0]], found[0])

    return {name: re.sub(_SPEED, compare_seconds, text) for name, text in files.items()}


class Chat:
    """Stands for the chat and the pager: keeps the messages that Alertmanager renders."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        messages = self.messages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                messages.extend(body["attachments"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def text(self) -> str:
        return "\n".join(f"{one['title']}\n{one['text']}" for one in self.messages)

    def told(self, alert: str, about: str = "") -> str | None:
        """What was said of an alert, and the line of links below."""
        found = re.search(rf"(?m)^\*{alert}\* .*{re.escape(about)}.*\n.*$", self.text())
        return None if found is None else found[0]


@contextmanager
def listening() -> Iterator[Chat]:
    chat = Chat()
    try:
        yield chat
    finally:
        chat.server.shutdown()
        chat.server.server_close()


@contextmanager
def running(chat: Chat, folder: Path, **settings: Any) -> Iterator[Chain]:
    """The chain, every second, with `settings` of its own; all that it started ends with it."""
    rules = folder / "rules"
    rules.mkdir()
    address = folder / "chat.url"
    address.write_text(f"http://127.0.0.1:{chat.server.server_port}/\n")
    files = shortened({path.name: path.read_text() for path in RULES.glob("*.yaml")})
    for name, text in files.items():
        (rules / name).write_text(re.sub(r"(?<=api_url_file: )\S+", str(address), text))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(standalone, "RULES", rules)
        processes.adopt_orphans()
        chain = Chain(Settings(folder / "chain", "1s", ports=(0, 0, 0, 0), **settings))
        try:
            chain.start(patience=PATIENCE_SECONDS)
            yield chain
        finally:
            chain.stop()


JSON = {"Content-Type": "application/json"}
Key = tuple[str, str]
"""An alert's name and job; the job is empty where it is about none."""


def wait_for(chain: Chain, chat: Chat, *wanted: Key) -> None:
    """Until each has reached Alertmanager, and people in its words, unless those are not to hear of it."""
    missing = set(wanted)

    def all_told() -> bool:
        # What was told stays so, whether or not it still fires.
        missing.difference_update([key for key in missing if chat.told(*key)])
        for one in get_json(f"{chain.alertmanager_url}/api/v2/alerts"):
            labels = one["labels"]
            key = (labels["alertname"], labels.get("job_id", ""))
            texts = " ".join(one["annotations"].values())
            assert "<no value>" not in texts and "<error" not in texts, texts
            # Another alert of the job, or its severity, may keep it from people.
            quiet = one["status"]["state"] == "suppressed" or labels["severity"] == "info"
            if quiet:
                missing.discard(key)
        return not missing

    wait_until(all_told, PATIENCE_SECONDS, lambda: f"{sorted(missing)}\n{chat.text()}")


def links(told: str) -> dict[str, str]:
    """The addresses under a message, by their text."""
    return {text: html.unescape(url) for url, text in re.findall(r"<([^|>]+)\|([^>]+)>", told)}


def send(url: str, body: bytes = b"", *, method: str = "POST", **headers: str) -> int:
    """The status of the answer."""
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
