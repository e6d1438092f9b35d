"""`make run`: watch this machine's own training processes."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from standalone import processes
from standalone.chain import Chain, ChainError, Settings


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m standalone",
        description="Exporter, snapshotter, Prometheus and Alertmanager for this machine's training jobs, "
        "on loopback, until Ctrl-C.",
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(".run"), help="data, configuration and logs (%(default)s)"
    )
    parser.add_argument("--scrape-interval", default="5s", help="how often Prometheus looks (%(default)s)")
    arguments = parser.parse_args()
    processes.adopt_orphans()
    # Also where a shell started us in the background, with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    chain = Chain(Settings(arguments.folder.resolve(), arguments.scrape_interval))
    try:
        chain.start()
        print(f"What is seen on this node   {chain.exporter_url}/")
        print(f"Captures and verdicts       {chain.snapshotter_url}/")
        print(f"Prometheus, Alertmanager    {chain.prometheus_url}/  {chain.alertmanager_url}/")
        print(f"Configuration, logs, data   {chain.settings.folder}/")
        print("Ctrl-C ends all four.", flush=True)
        while True:
            chain.check()
            time.sleep(1)
    except ChainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        chain.stop()


if __name__ == "__main__":
    sys.exit(main())
