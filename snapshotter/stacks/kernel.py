"""What a wait channel or a kernel stack says of uninterruptible sleep (names of Linux 4.18 to 6.12)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from snapshotter.stacks.digest import ProcessFacts

_KNOWN: tuple[tuple[str, Literal["storage", "device", "network"], str], ...] = (
    ("NFS", "storage", r"nfs4?_|rpc_wait|__rpc_|xprt_|nlmclnt|nfsd"),
    ("Lustre", "storage", r"ll_|osc_|ptlrpc|cl_sync_io|cl_io|ldlm_|lov_|mdc_|lustre|vvp_"),
    ("FUSE", "storage", r"fuse_|request_wait_answer"),
    ("Ceph", "storage", r"ceph_|rbd_"),
    ("GPFS", "storage", r"cxi\w*Wait|mmfs|gpfs|kxWait|ThreadThing"),
    ("SMB", "storage", r"cifs_|smb2?_|wait_for_response"),
    ("9p", "storage", r"p9_|v9fs_"),
    ("WekaFS", "storage", r"weka"),
    ("BeeGFS", "storage", r"beegfs|FhgfsOps"),
    ("the GPU driver", "device", r"nvidia|nv_|uvm_|os_acquire|rm_|amdgpu|kfd_|drm_|dma_fence|habana|ttm_"),
    ("RDMA", "network", r"ib_|mlx[45]_|rdma_|ucma_|uverbs"),
    (
        "a disk",
        "storage",
        r"io_schedule|folio_|wait_on_page|filemap_|blk_|bio_|bdev|jbd2|xfs_|ext[34]_|btrfs|submit_|wb_wait|nvme_|"
        r"md_|dm_|balance_dirty|sync_inodes|rwsem_down|iomap_|squashfs|overlay|ovl_",
    ),
)
_COMPILED = tuple((name, kind, re.compile(rf"(?:^|\b)(?:{pattern})")) for name, kind, pattern in _KNOWN)


@dataclass(frozen=True, slots=True)
class KernelWait:
    """What the kernel waits for: `subject` for people, "" where the names say nothing."""

    kind: Literal["storage", "device", "network", "unknown"]
    subject: str


UNKNOWN_WAIT = KernelWait("unknown", "")


def kernel_wait(process: ProcessFacts) -> KernelWait:
    """Told by the kernel stack from the innermost function outwards, and by the wait channel."""
    functions = (*process.kernel_stack, *((process.wchan,) if process.wchan else ()))
    if not functions and not process.open_files:
        return UNKNOWN_WAIT
    # A file system of its own says more than the page or lock that it waits for.
    for name, kind, pattern in _COMPILED:
        if any(pattern.search(function) for function in functions):
            return KernelWait(kind, name)
    if process.open_files:
        return KernelWait("storage", "a network file system")
    return UNKNOWN_WAIT


_SLEEPS = (
    ("a timer: it sleeps", r"hrtimer_nanosleep|do_nanosleep|schedule_hrtimeout"),
    ("a child process", r"^do_wait$|do_wait4|kernel_wait|wait_for_vfork"),
    ("a file lock", r"locks_lock|flock_lock|posix_lock|fcntl_setlk"),
    ("a pipe or FIFO", r"pipe_read|pipe_write|wait_for_partner|fifo_open|anon_pipe"),
    ("data from a socket", r"sk_wait_data|tcp_recvmsg|unix_stream|inet_csk|skb_wait|wait_woken|tcp_sendmsg"),
    ("one of several files or sockets", r"poll_schedule|do_poll|do_select|ep_poll|io_cqring_wait"),
    ("a lock or condition", r"futex"),
    ("a signal", r"sigtimedwait|sigsuspend|do_signal_stop|ptrace_stop"),
    ("a terminal", r"n_tty_read|wait_for_tty"),
)
_COMPILED_SLEEPS = tuple((name, re.compile(pattern)) for name, pattern in _SLEEPS)


def sleeps_for(process: ProcessFacts) -> str:
    """What a sleeping main thread waits for, by its wait channel; "" where that says nothing."""
    if process.state not in ("S", "D") or not process.wchan:
        return ""
    return next((name for name, pattern in _COMPILED_SLEEPS if pattern.search(process.wchan)), "")
