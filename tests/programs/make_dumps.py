"""Write a folder of py-spy dumps of an imaginary distributed job, with the right verdict beside it.

    python tests/programs/make_dumps.py OUT --scenario local-read --ranks 64 [--workers 2] [--threads 6]
    python tests/programs/make_dumps.py --list

Each file is what `py-spy dump --json` prints of one process: OUT/rank-00040.json, its DataLoader workers
OUT/rank-00040.dataloader-0.json, a second sample in OUT/second. OUT/expected.json is the truth, and no input.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from dump_stacks import CAUSES, STACKS, WAITING, WORKING, Frame

BACKGROUND = (
    ("Thread-1 (_pin_memory_loop)", "pin_memory"),
    ("QueueFeederThread", "feeder"),
    ("tqdm_monitor", "tqdm"),
    ("wandb-monitor", "tracker"),
    ("ThreadPoolExecutor-0_0", "pool"),
)

Choose = Callable[[int, int], str]  # (rank, sample) -> name of a stack


@dataclass(frozen=True)
class Scenario:
    """Stacks by rank and sample, and the truth. `absent` ranks have no dump."""

    stack: Choose
    hung: bool | None
    scope: str
    cause: str
    culprits: frozenset[int] = frozenset()
    absent: frozenset[int] = frozenset()
    worker: Choose = lambda rank, sample: "worker_idle"
    samples: int = 1


def _local(
    culprits: Iterable[int], theirs: str, others: str, cause: str | None = None, samples: int = 1
) -> Scenario:
    odd = frozenset(culprits)
    return Scenario(
        lambda rank, sample: theirs if rank in odd else others,
        True,
        "local",
        cause or CAUSES[theirs],
        odd,
        worker=lambda rank, sample: "worker_busy" if rank in odd and "loader" in theirs else "worker_idle",
        samples=samples,
    )


def _global(stack: str, cause: str, samples: int = 1) -> Scenario:
    busy = "worker_busy" if "loader" in stack else "worker_idle"
    return Scenario(lambda r, s: stack, True, "global", cause, worker=lambda r, s: busy, samples=samples)


def _moving(stack: Choose, cause: str, worker: Choose = lambda rank, sample: "worker_idle") -> Scenario:
    return Scenario(stack, False, "none", cause, worker=worker, samples=2)


def scenarios(ranks: int) -> dict[str, Scenario]:
    """All scenarios of a job of so many ranks, at least 8."""
    one, middle, last = {ranks // 3}, {ranks // 2}, {ranks - 1}
    node = set(range(ranks - 8, ranks)) if ranks > 8 else {ranks - 1}
    half = ranks // 2
    absent = frozenset({min(13, ranks - 2)})
    lost_node = frozenset(range(8, 16)) if ranks > 16 else frozenset({2, 3})
    return {
        # --- one rank, or a node, works while the rest waits
        **{f"local-{name}": _local(one, name, "all_reduce") for name in WORKING},
        **{f"behind-{name}": _local(middle, "sleep", name) for name in WAITING},
        "node-read": _local(node, "read", "backward"),
        "node-save": _local(node, "dcp", "barrier"),
        "most-load-data": _local(range(ranks - 2), "loader", "all_reduce"),
        "two-samples-lock": _local(one, "lock", "fsdp2", samples=2),
        "two-ranks-two-places": Scenario(
            lambda r, s: {1: "lock", 2: "event"}.get(r, "all_reduce"),
            True, "local", "application", frozenset({1, 2}),
        ),
        "mixed-waits": Scenario(  # DDP: some are in backward, some already in the next forward
            lambda r, s: "plain_lock" if r in one else ("backward", "buffers")[r % 2],
            True, "local", "application", frozenset(one),
        ),
        "pipeline-compute": Scenario(
            lambda r, s: "linear" if r == 1 else ("pipe_send" if r < half else "pipe_recv"),
            True, "local", "compute", frozenset({1}),
        ),
        "still-connecting": _local(last, "index", "init"),
        "left-early": _local(one, "exit_hooks", "backward"),
        # --- nobody waits
        **{f"global-{name}": _global(name, CAUSES[name]) for name in WORKING},
        # --- all wait
        **{f"symmetric-{name}": _global(name, "communication") for name in WAITING if not name.startswith("own_")},
        "symmetric-pipeline": Scenario(
            lambda r, s: "pipe_send" if r < half else "pipe_recv", True, "global", "communication"
        ),
        "symmetric-ddp": Scenario(
            lambda r, s: ("backward", "buffers")[r % 2], True, "global", "communication"
        ),
        "mismatch-barrier": _local(one, "barrier", "all_reduce", "communication"),
        "mismatch-broadcast": _local(middle, "broadcast", "backward", "communication"),
        "mismatch-gather": _local(last, "object_gather", "reduce_scatter", "communication"),
        "mismatch-recv": _local(one, "recv", "all_reduce", "communication"),
        "mismatch-zero3": _local(middle, "zero3", "all_reduce", "communication"),
        "mismatch-init": _local(one, "init", "all_reduce", "communication"),
        "not-so-far": _local(one, "synchronize", "all_reduce", "compute"),
        "mismatch-destroy": _local(one, "destroy", "backward", "communication"),
        "mismatch-site": _local(one, "all_reduce_later", "all_reduce", "communication"),
        "unknown-fabric": _local(one, "own_spin", "own_ring"),
        "unknown-links": Scenario(
            lambda r, s: "own_spin" if r in one else ("own_push" if r < half else "own_pull"),
            True, "local", "application", frozenset(one),
        ),
        "unknown-among-known": Scenario(
            lambda r, s: "plain_lock" if r in one else ("own_pull" if r < half else "backward"),
            True, "local", "application", frozenset(one),
        ),
        "lock-holder": _local(one, "getitem", "filelock"),
        "missing-rank": Scenario(lambda r, s: "all_reduce", True, "local", "unknown", absent, absent),
        "missing-node": Scenario(lambda r, s: "backward", True, "local", "unknown", lost_node, lost_node),
        "missing-and-working": Scenario(
            lambda r, s: "lock" if r == 0 else "all_reduce",
            True, "local", "application", frozenset({0}), absent,
        ),
        # --- nothing hangs
        "training": _moving(lambda r, s: ("linear", "backward", "loader", "all_reduce")[(r + s) % 4], "none"),
        "evaluation": _moving(lambda r, s: ("conv", "linear")[s], "none"),
        "straggler": _moving(lambda r, s: ("linear", "conv")[s] if r in one else "all_reduce", "none"),
        "slow-save": _moving(lambda r, s: ("save", "dcp")[s] if r == 0 else "barrier", "checkpoint"),
        "slow-compile": _moving(lambda r, s: ("inductor", "triton")[s], "compile"),
        "slow-loader": _moving(
            lambda r, s: "loader" if r in one else "all_reduce", "data",
            lambda r, s: ("worker_busy", "worker_busy_later")[s] if r in one else "worker_idle",
        ),
        # --- nothing can be told
        "one-look-at-training": Scenario(
            lambda r, s: ("linear", "lock", "loader", "save")[r % 4], None, "undetermined", "unknown"
        ),
    }  # fmt: skip


def fold(ranks: Iterable[int]) -> str:
    """`0-5/8`."""
    groups: list[list[int]] = []
    for rank in sorted(ranks):
        if groups and groups[-1][1] == rank - 1:
            groups[-1][1] = rank
        else:
            groups.append([rank, rank])
    return "/".join(str(a) if a == b else f"{a}-{b}" for a, b in groups)


def _thread(pid: int, number: int, name: str, frames: tuple[Frame, ...]) -> dict[str, Any]:
    return {
        "pid": pid,
        "thread_id": 140000000000000 + pid * 4096 + number,
        "thread_name": name,
        "os_thread_id": pid + number,
        "active": number == 0,
        "owns_gil": False,
        "frames": frames[::-1],
        "process_info": None,
    }


def write(out: Path, name: str, ranks: int, *, workers: int = 0, threads: int = 6) -> dict[str, Any]:
    """Write the dumps of one scenario and return its truth."""
    scenario = scenarios(ranks)[name]
    for sample in range(scenario.samples):
        folder = out if sample == 0 else out / "second"
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(ranks):
            if rank not in scenario.absent:
                _write_rank(folder, scenario, rank, sample, workers, threads)
    truth = {
        "scenario": name,
        "ranks": ranks,
        "hung": scenario.hung,
        "scope": scenario.scope,
        "cause": scenario.cause,
        "culprit_ranks": fold(scenario.culprits),
        "not_captured": fold(scenario.absent),
    }
    (out / "expected.json").write_text(json.dumps(truth, indent=1) + "\n")
    return truth


def _write_rank(folder: Path, scenario: Scenario, rank: int, sample: int, workers: int, threads: int) -> None:
    pid = 10_000 + 100 * rank
    dump = [_thread(pid, 0, "MainThread", STACKS[scenario.stack(rank, sample)])]
    background = BACKGROUND[: max(0, threads - 1)]
    dump += [_thread(pid, n, name, STACKS[stack]) for n, (name, stack) in enumerate(background, 1)]
    (folder / f"rank-{rank:05d}.json").write_text(json.dumps(dump, indent=2))
    for worker in range(workers):
        helper = _thread(pid + 50 + worker, 0, "MainThread", STACKS[scenario.worker(rank, sample)])
        path = folder / f"rank-{rank:05d}.dataloader-{worker}.json"
        path.write_text(json.dumps([helper], indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--scenario", default="local-read")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--threads", type=int, default=6, help="Python threads of each rank, 1 to 6")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    known = scenarios(max(8, arguments.ranks))
    if arguments.list or arguments.out is None:
        print("\n".join(known))
    elif arguments.scenario not in known:
        parser.error(f"no scenario {arguments.scenario!r}; --list shows them")
    else:
        size = {"workers": arguments.workers, "threads": arguments.threads}
        write(arguments.out, arguments.scenario, max(8, arguments.ranks), **size)


if __name__ == "__main__":
    main()
