"""Turn bundles that `make faults FAULTS='--keep DIR'` left into test data: `python -m tests.faults.fixtures DIR`.

Paths of the machine are replaced; nothing else is changed.
"""

from __future__ import annotations

import gzip
import re
import shutil
import sys
from pathlib import Path

from standalone.chain import ROOT

KEPT = (
    "two-threads",
    "stuck-worker",
    "uninterruptible",
    "stopped-rank",
    "killed-rank",
    "collective-mismatch",
    "slow-checkpoint",
)
TARGET = ROOT / "tests" / "fixtures" / "bundles"


def main() -> None:
    kept = Path(sys.argv[1]).resolve()
    for name in KEPT:
        shutil.rmtree(TARGET / name, ignore_errors=True)
        for source in sorted((kept / name / "bundle").rglob("*")):
            if source.is_file():
                target = TARGET / name / source.relative_to(kept / name / "bundle")
                target.parent.mkdir(parents=True, exist_ok=True)
                _copy(source, target, kept)


def _copy(source: Path, target: Path, kept: Path) -> None:
    packed = source.suffix == ".gz"
    text = (gzip.decompress(source.read_bytes()) if packed else source.read_bytes()).decode()
    places = {
        str(Path(sys.prefix).resolve()): "/opt/venv",
        sys.prefix: "/opt/venv",
        str(ROOT): "/srv/train",
        str(kept): "/scratch",
        str(Path(sys.base_prefix)): "/usr/local",
    }
    for place, shown in places.items():
        text = text.replace(place, shown)
    text = re.sub(r'"requested_by": ?"\w+"', '"requested_by": "ops"', text)
    data = text.encode()
    target.write_bytes(gzip.compress(data, mtime=0) if packed else data)


if __name__ == "__main__":
    main()
