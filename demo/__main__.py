"""`make demo`: a real hang, found, captured and explained while you watch."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
import urllib.request
from pathlib import Path

from demo import job
from demo.scenarios import SCENARIOS, Scenario, find
from demo.watch import Verdict, Watch, say
from standalone import processes
from standalone.chain import Chain, ChainError, Settings

HANG_LIMIT = "6s"
PATIENCE_SECONDS = 180.0


def settings(folder: Path) -> Settings:
    """The chain with the demo's short limits."""
    return Settings(
        folder,
        scrape_interval="1s",
        exporter={"limits": {"hang_limit": HANG_LIMIT}},
        snapshotter={"capture": {"sample_interval": "2s"}},
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make demo SCENARIO=…",
        description="Run a real torchrun job in which something goes wrong; watch Hangscope find out what.",
        epilog="scenarios: " + "; ".join(f"{one.name}: {one.story}" for one in SCENARIOS),
    )
    parser.add_argument("--scenario", choices=[one.name for one in SCENARIOS], default="stuck-rank")
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="data and logs (%(default)s)")
    parser.add_argument(
        "--once", action="store_true", help="end when the verdict is there, instead of at Ctrl-C"
    )
    arguments = parser.parse_args()
    scenario = find(arguments.scenario)
    processes.adopt_orphans()
    # Also where a shell started us in the background, with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    folder = arguments.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    chain = Chain(settings(folder))
    try:
        chain.start()
        return _show(chain, scenario, once=arguments.once)
    except ChainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("")
        return 0
    finally:
        say("Ending what the demo started …")
        chain.stop()


def ask_during_checkpoint(chain: Chain, watch: Watch, job_id: str, stop_at: float) -> Verdict | None:
    """No alert fires in a checkpoint, so a capture is asked for by hand while it is written."""
    log = chain.settings.folder / "job" / f"{job_id}.log"
    while "saving checkpoint" not in log.read_text() or watch.age() < 2.0:
        if time.monotonic() > stop_at:
            return None
        chain.check()
        watch.look()
        time.sleep(0.3)
    watch.line("the checkpoint is being written and no alert fires; asking for a capture by hand")
    body = json.dumps({"job_id": job_id, "reason": "demo: is the checkpoint a hang?"}).encode()
    headers = {"Authorization": f"Bearer {chain.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{chain.snapshotter_url}/api/v1/captures", body, headers)
    with urllib.request.urlopen(request, timeout=30):
        pass
    return watch.wait_for_verdict(stop_at)


def _show(chain: Chain, scenario: Scenario, *, once: bool) -> int:
    job_id = f"demo-{scenario.name}"
    watch = Watch(chain, job_id, say=say)
    say(f"Scenario {scenario.name}: {scenario.story}")
    say(f"  exporter {chain.exporter_url}  snapshotter {chain.snapshotter_url}")
    say(f"  Prometheus {chain.prometheus_url}  Alertmanager {chain.alertmanager_url}")
    chain.adopt(job.start(scenario.name, job_id=job_id, folder=chain.settings.folder / "job"))
    watch.line(
        f"torchrun started with {job.RANKS} ranks; its log is {chain.settings.folder / 'job' / job_id}.log"
    )
    deadline = time.monotonic() + PATIENCE_SECONDS
    if scenario.hung:
        verdict = watch.wait_for_verdict(deadline)
    else:
        verdict = ask_during_checkpoint(chain, watch, job_id, deadline)
    if verdict is None:
        say(f"error: no verdict after {PATIENCE_SECONDS:.0f} s; see the logs in {chain.settings.folder}")
        return 1
    say("")
    say(f"  {verdict.headline}")
    say(f"  {verdict.url}")
    say("")
    if once:
        return 0
    say("Everything stays up to look around; Ctrl-C ends it.")
    while True:
        chain.check()
        watch.look()
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
