"""Records that tell of trouble, by kind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from exporter.logs import trouble
from exporter.logs.interpreter import Interpreter

TRAINING = Path(__file__).parents[1] / "fixtures" / "logs" / "training"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42106, OpType=ALLREDUCE, …",
            "nccl_timeout",
        ),
        ("[Rank 0] Received a dump signal due to a collective timeout from rank 3", None),
        ("[PG ID 0 Rank 0] Process group watchdog thread terminated with exception", "nccl_abort"),
        ("RuntimeError: NCCL communicator was aborted on rank 2.", "nccl_abort"),
        ("Detected mismatch between collectives on ranks.", "desync"),
        ("node-3:41021:41077 [0] NCCL WARN Call to ibv_reg_mr failed", "nccl_error"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "out_of_memory"),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=88123.0.", "out_of_memory"),
        ("NVRM: Xid (PCI:0000:1a:00): 79, pid=4121, GPU has fallen off the bus.", "xid"),
        ("RuntimeError: CUDA error: device-side assert triggered", "cuda_error"),
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", "elastic_failure"),
        ("Traceback (most recent call last):", "traceback"),
        ("ValueError: cannot reshape array", "exception"),
        ("iter 5: loss 2.5, time 3ms", None),
        ("saving checkpoint with error correction enabled", None),
        ("max memory allocated: 62214", None),
        ("", None),
    ],
)
def test_kind(text: str, kind: str | None) -> None:
    assert trouble.kind(text) == kind


def test_a_hang_is_told_by_the_watchdog_of_each_rank() -> None:
    interpreter = Interpreter()
    kinds: Counter[str | None] = Counter()
    ranks = set()
    for record in (TRAINING / "megatron-lm-nccl-hang.log").read_bytes().splitlines(keepends=True):
        observation = interpreter.feed(record)
        if observation is not None and observation.reading is None:
            kind = trouble.kind(observation.text)
            kinds[kind] += 1
            if kind == "nccl_timeout":
                ranks.add(observation.rank)
    assert kinds["nccl_timeout"] >= 8
    assert ranks >= set(range(8))
