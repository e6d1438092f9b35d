"""Records that tell of trouble rather than progress, by kind."""

from __future__ import annotations

import re

_KINDS = (
    ("nccl_timeout", r"Watchdog caught collective operation timeout|collective operation timeout"),
    ("desync", r"(?i)desync(?:hroni[sz]ed)?|mismatch between collective|Detected mismatch"),
    (
        "nccl_abort",
        r"(?i)watchdog (?:thread )?(?:terminated|got stuck)|ncclCommAbort|NCCL communicator was aborted"
        r"|DistBackendError",
    ),
    ("nccl_error", r"NCCL (?:error|WARN|ERROR)|nccl\w*Error|unhandled system error"),
    (
        "out_of_memory",
        r"(?i)out of memory|OutOfMemoryError|oom-kill|Killed process \d+|Cannot allocate memory",
    ),
    ("xid", r"NVRM: Xid|\bXid\b.{0,40}\d+|ECC error|fallen off the bus"),
    (
        "cuda_error",
        r"CUDA error|cudaError\w*|CUBLAS_STATUS_\w+|CUDNN_STATUS_\w+|device-side assert|illegal memory access",
    ),
    (
        "elastic_failure",
        r"ChildFailedError|Sending process \d+ closing signal|failed \(exitcode: -?\d+\)|RendezvousTimeoutError"
        r"|Root Cause \(first observed failure\)",
    ),
    ("traceback", r"Traceback \(most recent call last\)"),
    ("exception", r"^\s*(?:\w+\.)*\w+(?:Error|Exception)(?::|$)"),
)
_COMPILED = tuple((kind, re.compile(pattern)) for kind, pattern in _KINDS)
_HINTS = (
    *(
        "error",
        "exception",
        "watchdog",
        "timeout",
        "desync",
        "abort",
        "memory",
        "oom",
        "xid",
        "traceback",
        "fail",
    ),
    *("mismatch", "killed", "signal", "root cause", "fallen", "nccl warn", "assert"),
)


def kind(text: str) -> str | None:
    """The kind of trouble that a record tells of; None where it tells of none."""
    lowered = text.lower()
    if not any(hint in lowered for hint in _HINTS):
        return None
    return next((name for name, pattern in _COMPILED if pattern.search(text)), None)
