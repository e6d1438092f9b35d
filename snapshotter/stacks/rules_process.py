"""Rules about processes: stopped, ended, blocked in the kernel. Facts of /proc outweigh stacks."""

from __future__ import annotations

from snapshotter.stacks import rankset
from snapshotter.stacks.case import Case, RankView
from snapshotter.stacks.finding import Finding, speaks_for
from snapshotter.stacks.follow import Followed, follow
from snapshotter.stacks.kernel import KernelWait, kernel_wait
from snapshotter.stacks.rankset import RankSet
from snapshotter.stacks.verdict import Cause
from snapshotter.stacks.wording import at, count, doing, named

_CAUSES: dict[str, Cause] = {
    "device": "compute",
    "network": "communication",
    "storage": "storage_io",
    "unknown": "storage_io",  # disk sleep is what state D nearly always is
}


def stopped(case: Case) -> Finding | None:
    """Ranks that were stopped by a signal or are traced, or whose DataLoader worker is: nothing they do goes on."""
    own = case.where(lambda view: view.stopped)
    workers: dict[int, Followed] = {}
    for view in case.views():
        if not view.stopped and (worker := _worker(case, view, "stopped")) is not None:
            workers[view.rank] = worker
    ranks = own | rankset.of(list(workers))
    if not ranks:
        return None
    everyone = not case.world & ~ranks
    evidence = [speaks_for("state", f"{named(own)}: process state T in every sample.")] if own else []
    for rank, worker in list(workers.items())[:4]:
        text = f"Rank {rank}: its DataLoader worker {_number(worker)} is in state T in every sample."
        evidence.append(speaks_for("state", text))
    return Finding(
        rule="stopped",
        cause="process_stopped",
        strength=0.95,
        culprits=rankset.EMPTY if everyone else ranks,
        scope="global" if everyone else "local",
        doing=_stopped(case, own, workers),
        says=f"All {count(ranks.bit_count())} are stopped (state T); kill -CONT continues them."
        if everyone
        else "",
        evidence=tuple(evidence),
    )


def _stopped(case: Case, own: RankSet, workers: dict[int, Followed]) -> str:
    pids = ", ".join(str(view.trainer.pid) for view in list(case.views(own))[:8])
    if own:
        return f"{'are' if own.bit_count() > 1 or workers else 'is'} stopped (state T, pid {pids})"
    if len(workers) > 1:
        return "wait for DataLoader workers that are stopped (state T)"
    (worker,) = workers.values()
    return f"waits for its DataLoader worker {_number(worker)}, which is stopped (state T)"


def ended(case: Case) -> Finding | None:
    """Ranks whose process is gone while others live on."""
    gone = case.where(lambda view: view.ended)
    ranks = gone | case.absent
    alive = case.captured & ~ranks
    if not ranks or not alive:
        return None
    many = ranks.bit_count() > 1
    evidence = []
    if gone:
        evidence.append(speaks_for("exit", f"{named(gone)}: the process ended, or is a zombie."))
    if case.absent:
        evidence.append(
            speaks_for("exit", f"{named(case.absent)}: the node answered and has no such process.")
        )
    return Finding(
        rule="ended",
        cause="process_exit",
        strength=0.9 if 2 * ranks.bit_count() <= case.world.bit_count() else 0.5,
        culprits=ranks,
        doing=f"{'have' if many else 'has'} no process any more",
        evidence=tuple(evidence),
    )


def blocked(case: Case) -> Finding | None:
    """Ranks, or the DataLoader workers they wait for, that sleep in the kernel until storage answers."""
    found: dict[int, tuple[KernelWait, str]] = {}
    for rank, view in case.ranks.items():
        reason = _blocked(case, view)
        if reason is not None:
            found[rank] = reason
    if not found:
        return None
    ranks = rankset.of(list(found))
    ranks |= _same_work(case, ranks)
    wait, where = next(iter(found.values()))
    cause = _CAUSES[wait.kind]
    everyone = not case.captured & ~ranks
    sleep = f"in uninterruptible sleep{f' ({wait.subject})' if wait.subject else ''}"
    text = f"{doing(case, ranks)}, {sleep}{where}" if ranks & case.captured else f"is {sleep}{where}"
    subjects = sorted({one.subject for one, _ in found.values() if one.subject})
    evidence = [
        speaks_for("state", f"{named(rankset.of(list(found)))}: uninterruptible sleep (state D){where}.")
    ]
    if subjects:
        evidence.append(speaks_for("kernel", f"The kernel waits for {', '.join(subjects)} there."))
    return Finding(
        rule="blocked",
        cause=cause,
        strength=0.9,
        culprits=rankset.EMPTY if everyone else ranks,
        scope="global" if everyone else "local",
        doing=text,
        says=f"All {count(ranks.bit_count())} {text}." if everyone else "",
        evidence=tuple(evidence),
    )


def _blocked(case: Case, view: RankView) -> tuple[KernelWait, str] | None:
    """What this rank is blocked on, and ` in its DataLoader worker …` where it is not the rank itself."""
    if view.blocked:
        return kernel_wait(view.trainer), ""
    own_work = view.read and not view.now.waits
    if own_work and view.trainer.state != "R" and view.trainer.wchan:
        # FUSE and some network file systems sleep interruptibly.
        wait = kernel_wait(view.trainer)
        if wait.kind == "storage" and wait.subject != "a disk":
            return wait, ""
    worker = _worker(case, view, "blocked")
    if worker is not None:
        where = f" in DataLoader worker {_number(worker)} at {at(worker.activity.frame)}"
        return kernel_wait(worker.worker), where
    if (
        own_work
        and view.trainer.blocked_threads
        and view.now.kind in ("lock", "checkpoint", "data", "storage")
    ):
        name, wchan = view.trainer.blocked_threads[0]
        return KernelWait("storage", ""), f" in thread {name}{f' ({wchan})' if wchan else ''}"
    return None


def _worker(case: Case, view: RankView, trouble: str) -> Followed | None:
    """The DataLoader worker that this rank waits for, if that is what is wrong with it."""
    if not view.read or view.now.kind != "dataloader":
        return None
    followed = follow(case, view)
    return followed if followed is not None and followed.trouble == trouble else None


def _number(followed: Followed) -> str:
    worker = followed.worker
    return f"{worker.worker if worker.worker is not None else '?'} (pid {worker.pid})"


def _same_work(case: Case, ranks: RankSet) -> RankSet:
    """Ranks at the very same place of their own work: some were between two sleeps when looked at."""
    places = {
        view.now.place for view in case.views(ranks & case.captured) if not view.now.waits and view.now.frame
    }
    alike = [view.rank for view in case.views() if not view.now.waits and view.now.place in places]
    return rankset.of(alike)
