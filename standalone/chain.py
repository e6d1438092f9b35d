"""Exporter, snapshotter, Prometheus and Alertmanager, configured for each other on loopback and started."""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from standalone import processes

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "rules"


class ChainError(Exception):
    """The chain cannot run; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What differs between `make run`, the demo and the tests. Times are in Prometheus's notation."""

    folder: Path  # configuration, logs and data of all four programs
    scrape_interval: str = "15s"
    exporter: dict[str, Any] = field(default_factory=dict)  # the exporter's configuration file
    snapshotter: dict[str, Any] = field(default_factory=dict)
    procfs: Path = Path("/proc")  # as the exporter is told
    ports: tuple[int, int, int, int] = (11028, 11029, 19090, 19093)  # a taken one is replaced by a free one
    prometheus_data: Path | None = None


class Chain:
    """The running chain. `start` raises ChainError; `stop` ends all that was started."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        exporter, snapshotter, prometheus, alertmanager = _free_ports(settings.ports)
        self.exporter_url = f"http://127.0.0.1:{exporter}"
        self.snapshotter_url = f"http://127.0.0.1:{snapshotter}"
        self.prometheus_url = f"http://127.0.0.1:{prometheus}"
        self.alertmanager_url = f"http://127.0.0.1:{alertmanager}"
        self.token = secrets.token_urlsafe(32)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._adopted: list[subprocess.Popen[bytes]] = []

    def start(self, *, patience: float = 60.0) -> None:
        """Write the configurations, start the programs and wait until each is ready."""
        folder = self.settings.folder
        folder.mkdir(parents=True, exist_ok=True)
        self._write_configuration()
        for name, command in self._commands().items():
            self._children[name] = processes.start(command, log=self.log(name))
        ready = {
            "exporter": f"{self.exporter_url}/-/ready",
            "snapshotter": f"{self.snapshotter_url}/-/ready",
            "prometheus": f"{self.prometheus_url}/-/ready",
            "alertmanager": f"{self.alertmanager_url}/-/ready",
        }
        deadline = time.monotonic() + patience
        for name, url in ready.items():
            while not _answers(url):
                self.check()
                if time.monotonic() > deadline:
                    raise ChainError(f"{name} is not ready after {patience:.0f} s; see {self.log(name)}")
                time.sleep(0.1)

    def adopt(self, child: subprocess.Popen[bytes]) -> None:
        """End this program too when the chain stops; that it ends by itself is no error."""
        self._adopted.append(child)

    def check(self) -> None:
        """Raise ChainError where one of the programs has ended."""
        for name, child in self._children.items():
            if child.poll() is not None:
                tail = "\n".join(self.log(name).read_text(errors="replace").splitlines()[-10:])
                raise ChainError(
                    f"{name} ended with status {child.returncode}; the end of {self.log(name)}:\n{tail}"
                )

    def stop(self) -> None:
        processes.end((*self._children.values(), *self._adopted))
        self._children.clear()
        self._adopted.clear()

    def pid(self, name: str) -> int:
        """Of one of the four programs."""
        return self._children[name].pid

    def log(self, name: str) -> Path:
        """Where a program's output goes."""
        return self.settings.folder / f"{name}.log"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """An instant query of Prometheus: a list of {"metric": labels, "value": [time, text]}."""
        url = f"{self.prometheus_url}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        return list(get_json(url)["data"]["result"])

    def _commands(self) -> dict[str, list[str]]:
        folder = self.settings.folder
        scripts = Path(sys.executable).parent
        data = self.settings.prometheus_data or folder / "prometheus"
        return {
            "exporter": [
                str(scripts / "hangscope-exporter"),
                "serve",
                f"--config.file={folder / 'exporter.yml'}",
                f"--web.listen-address={_address(self.exporter_url)}",
                f"--path.procfs={self.settings.procfs}",
            ],
            "snapshotter": [
                str(scripts / "hangscope-snapshotter"),
                "serve",
                f"--config.file={folder / 'snapshotter.yml'}",
                f"--web.listen-address={_address(self.snapshotter_url)}",
                f"--web.external-url={self.snapshotter_url}",
                f"--web.token-file={folder / 'webhook.token'}",
                f"--storage.path={folder / 'snapshotter'}",
            ],
            "prometheus": [
                program("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={data}",
                f"--web.listen-address={_address(self.prometheus_url)}",
                f"--web.external-url={self.prometheus_url}/",
            ],
            "alertmanager": [
                program("prometheus-alertmanager"),
                f"--config.file={folder / 'alertmanager.yml'}",
                f"--storage.path={folder / 'alertmanager'}",
                f"--web.listen-address={_address(self.alertmanager_url)}",
                f"--web.external-url={self.alertmanager_url}/",
                "--cluster.listen-address=",
            ],
        }

    def _write_configuration(self) -> None:
        folder = self.settings.folder
        token = folder / "webhook.token"
        token.touch(mode=0o600)
        token.chmod(0o600)
        token.write_text(self.token + "\n")
        # JSON is YAML, and needs no writer of ours.
        (folder / "exporter.yml").write_text(json.dumps(self.settings.exporter, indent=2) + "\n")
        (folder / "snapshotter.yml").write_text(json.dumps(self.settings.snapshotter, indent=2) + "\n")
        (folder / "prometheus.yml").write_text(json.dumps(self._prometheus(), indent=2) + "\n")
        (folder / "alertmanager.yml").write_text(json.dumps(self._alertmanager(), indent=2) + "\n")
        (folder / "settings.yaml").write_text(json.dumps(self._rule_settings(), indent=2) + "\n")

    def _prometheus(self) -> dict[str, Any]:
        return {
            "global": {
                "scrape_interval": self.settings.scrape_interval,
                "scrape_timeout": self.settings.scrape_interval,
                "evaluation_interval": self.settings.scrape_interval,
            },
            "rule_files": [
                str(self.settings.folder / "settings.yaml"),
                str(RULES / "*_alerts.yaml"),
                str(RULES / "*_rules.yaml"),
            ],
            "alerting": {
                "alertmanagers": [{"static_configs": [{"targets": [_address(self.alertmanager_url)]}]}]
            },
            "scrape_configs": [
                {
                    "job_name": "hangscope-exporter",
                    "static_configs": [{"targets": [_address(self.exporter_url)]}],
                },
                {
                    "job_name": "hangscope-snapshotter",
                    "static_configs": [{"targets": [_address(self.snapshotter_url)]}],
                },
            ],
        }

    def _alertmanager(self) -> dict[str, Any]:
        """The shipped example, pointed at our snapshotter; receivers whose address file is missing stay empty."""
        config: dict[str, Any] = yaml.safe_load((RULES / "alertmanager-example.yaml").read_text())
        for receiver in config["receivers"]:
            for hook in receiver.get("webhook_configs", ()):
                hook["url"] = f"{self.snapshotter_url}/api/v1/alerts"
                token = str(self.settings.folder / "webhook.token")
                hook["http_config"]["authorization"]["credentials_file"] = token
            for kind in [kind for kind in receiver if kind not in ("name", "webhook_configs")]:
                if not all(
                    Path(one[key]).exists() for one in receiver[kind] for key in one if key.endswith("_file")
                ):
                    del receiver[kind]
        return config

    def _rule_settings(self) -> dict[str, Any]:
        """The shipped settings of the rules, with this chain's addresses."""
        config: dict[str, Any] = yaml.safe_load((RULES / "settings.yaml").read_text())
        labels = config["groups"][0]["rules"][0]["labels"]
        labels["snapshotter_url"] = self.snapshotter_url
        labels["runbooks_url"] = f"{self.snapshotter_url}/runbooks"
        return config


def program(name: str) -> str:
    """The path of a program of the distribution. Raises ChainError with the remedy."""
    found = shutil.which(name, path="/usr/bin:/usr/local/bin:/bin:/usr/sbin:/sbin")
    if found is None:
        raise ChainError(f"{name} is not installed: run `make system-packages` (apt-get install {name})")
    return found


def get_json(url: str, *, timeout: float = 30.0) -> Any:
    """Read one JSON document. Raises OSError."""
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return json.load(answer)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _address(url: str) -> str:
    return url.removeprefix("http://")


def _free_ports(wanted: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """The wanted ports, each replaced by a free one where it is taken."""
    held: list[socket.socket] = []
    ports = []
    for port in wanted:
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.append(one)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            one.bind(("127.0.0.1", 0))
        ports.append(one.getsockname()[1])
    for one in held:
        one.close()
    first, second, third, fourth = ports
    return first, second, third, fourth
