"""The chain with a pager of ours at its end, seeing the jobs of one run alone."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standalone.chain import Chain, Settings


@dataclass(slots=True)
class Pager:
    """Stands for the pager: when it was first told of each alert, by (name, job, startsAt). Unix seconds."""

    told: dict[tuple[str, str, str], float] = field(default_factory=dict)
    url: str = ""
    _server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        pager, one_at_a_time = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for alert in body["alerts"]:
                    labels = alert["labels"]
                    if alert["status"] == "firing":
                        key = (labels["alertname"], labels.get("job_id", ""), alert["startsAt"])
                        with one_at_a_time:  # readers have the dictionary of before
                            pager.told = {key: time.time()} | pager.told
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def times(self, alert: str, job_id: str) -> list[float]:
        return sorted(at for (name, job, _), at in self.told.items() if (name, job) == (alert, job_id))


class WatchedChain(Chain):
    """Jobs whose id begins with `prefix` alone: this machine may run others. It ends when its parent does."""

    def __init__(self, settings: Settings, pager: Pager, prefix: str) -> None:
        super().__init__(settings)
        self._pager = pager
        self._prefix = prefix

    def pids(self) -> dict[str, int]:
        return {name: child.pid for name, child in self._children.items()}

    def _commands(self) -> dict[str, list[str]]:
        commands = super()._commands()
        return {name: ["setpriv", "--pdeathsig", "KILL", "--", *one] for name, one in commands.items()}

    def _prometheus(self) -> dict[str, Any]:
        config = super()._prometheus()
        ours = {"source_labels": ["job_id"], "regex": f"|{self._prefix}.+", "action": "keep"}
        for one in config["scrape_configs"]:
            one["metric_relabel_configs"] = [ours]
        return config

    def _alertmanager(self) -> dict[str, Any]:
        config = super()._alertmanager()
        for receiver in config["receivers"]:
            if receiver["name"] == "pager":
                receiver["webhook_configs"] = [{"url": self._pager.url, "send_resolved": False}]
        return config
