"""Who is who among the processes of training jobs: trainers, their helpers, their launchers.

Pure: takes what is known of each candidate process, gives a place to each that has one. Only what outlives a
process is remembered between calls: the number that a spawned rank got, the role of a helper whose owner
died, the job of a launcher whose ranks died.

A trainer is the topmost Python process with its claim (a rank in its environment), below its launcher.
Children inherit the claim, so they are helpers; which ones, their name, command line and threads tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from exporter import jobs, launchers, roles
from exporter.launchers import Claim
from exporter.rankmodel import Candidate, Placed, Placement, ProcessId
from exporter.siblings import Siblings, in_group, may_train, python_parent, up_to_launcher

# Launchers that start the ranks of a node together.
_COUNTED_BY_NODE = frozenset(
    {"openmpi", "mpich", "mvapich", "jsrun", "horovod", "flux", "pals", "alps", "slurm", "pmix"}
)


class RankTree:
    """Places candidates; `job_id` overrules whatever they say of their job."""

    def __init__(self, job_id: str | None = None) -> None:
        self._job_id = job_id
        self._siblings = Siblings()
        self._helpers: dict[ProcessId, Placed] = {}
        self._launchers: dict[ProcessId, Placed] = {}

    def place(self, candidates: Mapping[int, Candidate]) -> Placement:
        """Give each candidate its place. Keys are pids."""
        refused: dict[int, str] = {}
        families, parents = self._siblings.numbered(candidates)
        trainers = self._claimants(candidates, refused)
        trainers = {pid: claim for pid, claim in trainers.items() if pid not in parents} | families
        self._drop_wrappers(candidates, trainers)
        candidates = _with_jobs_of_children(candidates, trainers)
        placed = {pid: self._trainer(candidates, pid, claim) for pid, claim in trainers.items()}
        conflicts = self._settle(candidates, placed, refused)
        self._place_helpers(candidates, placed)
        self._place_launchers(candidates, placed, refused)
        for pid, one in candidates.items():
            if in_group(one) and pid not in placed:
                refused.setdefault(pid, "is in a process group, but nothing says its rank")
        self._forget(candidates)
        order = sorted(placed.values(), key=lambda one: (one.id.start_ticks, one.id.pid))
        # Refused as a rank, a process may still have found a place: as a helper, or among its siblings.
        left = tuple(sorted((pid, why) for pid, why in refused.items() if pid not in placed))
        return Placement(tuple(order), left, conflicts)

    def _claimants(self, candidates: Mapping[int, Candidate], refused: dict[int, str]) -> dict[int, Claim]:
        """The topmost process of each claim."""
        claims: dict[int, Claim] = {}
        for pid, one in candidates.items():
            if one.claim is None or one.claim.rank is None or not may_train(one) or one.id in self._helpers:
                continue
            if one.claim.weak and not one.threads:
                refused[pid] = "is the only task of a batch job and shows no thread of torch"
            else:
                claims[pid] = one.claim
        return {
            pid: claim
            for pid, claim in claims.items()
            if not any(claims.get(above) == claim for above in up_to_launcher(candidates, candidates[pid]))
        }

    def _drop_wrappers(self, candidates: Mapping[int, Candidate], trainers: dict[int, Claim]) -> None:
        """Where a Python wrapper started the training as its child, the child is the trainer."""
        for pid, one in candidates.items():
            if one.claim is None or pid in trainers or not may_train(one) or not in_group(one):
                continue
            above = next((each for each in one.ancestors if each in trainers), None)
            if above is None or trainers[above] != one.claim or in_group(candidates[above]):
                continue
            if one.command_line != candidates[above].command_line:
                trainers[pid] = trainers.pop(above)

    def _trainer(self, candidates: Mapping[int, Candidate], pid: int, claim: Claim) -> Placed:
        one = candidates[pid]
        launcher = _launcher(candidates, one)
        parent = python_parent(candidates, one)
        starter = launcher or (parent if claim.launcher in ("spawn", "lightning") else None)
        if claim.launcher == "lightning" and starter is None:
            starter = one
        size = claim.local_world_size
        return Placed(
            id=one.id,
            role="trainer",
            job_id=self._job(one, starter),
            rank=claim.rank,
            local_rank=claim.local_rank,
            world_size=claim.world_size,
            launcher=claim.launcher,
            group=_group(one, claim, starter),
            group_size=size,
        )

    def _job(self, one: Candidate, starter: Candidate | None) -> str:
        if self._job_id is not None:
            return self._job_id
        if starter is not None and (one.job is None or one.job.source == "master"):
            # The master's port may change when torchrun restarts its ranks; where its agents meet does not.
            named = jobs.rendezvous(starter.command_line, one.host)
            if named is not None:
                return named
        for known in (one, starter):
            if known is not None and known.job is not None:
                return known.job.id
        return jobs.clean(f"{one.host}:pid-{(starter or one).id.pid}")

    def _settle(
        self, candidates: Mapping[int, Candidate], placed: dict[int, Placed], refused: dict[int, str]
    ) -> dict[str, int]:
        """Decide between processes that claim the same rank; what stays undecided counts as a conflict."""
        conflicts: dict[str, int] = {}
        claims: dict[tuple[str, int | None], list[int]] = {}
        for pid, one in placed.items():
            claims.setdefault((one.job_id, one.rank), []).append(pid)
        bosses = [one for one in candidates.values() if one.launcher and one.claim is not None]
        for pid in list(placed):
            boss = _shadowed(candidates, candidates[pid], bosses, placed)
            if boss is not None:
                refused[pid] = f"has the rank of its node or pod; the ranks are started by process {boss}"
                del placed[pid]
        for (job, rank), pids in claims.items():
            pids = [pid for pid in pids if pid in placed]
            launched = [pid for pid in pids if _launcher(candidates, candidates[pid]) is not None]
            if launched and len(launched) < len(pids):
                for pid in set(pids) - set(launched):
                    refused[pid] = f"claims rank {rank} of job {job}, which process {launched[0]} has"
                    del placed[pid]
            if len(pids) > 1:
                conflicts[job] = conflicts.get(job, 0) + len(pids) - 1
        return conflicts

    def _place_helpers(self, candidates: Mapping[int, Candidate], placed: dict[int, Placed]) -> None:
        """What lives below a trainer; and what did, and lives on."""
        trainers = {pid: one for pid, one in placed.items() if one.role == "trainer"}
        below: dict[int, list[Candidate]] = {}
        for pid, one in candidates.items():
            owner = next((above for above in one.ancestors if above in trainers), None)
            if owner is not None and pid not in trainers and not _starts(candidates, one, trainers):
                below.setdefault(owner, []).append(one)
        for owner, members in below.items():
            named = any(one.name == "pt_data_worker" for one in members)
            workers = 0
            for one in sorted(members, key=lambda one: (one.id.start_ticks, one.id.pid)):
                role = roles.helper_role(
                    one.command_line,
                    one.name,
                    candidates[owner].command_line,
                    python=one.python,
                    process_group=in_group(one),
                    writes_checkpoint=one.writes_checkpoint,
                    named_workers=named and one.settled,
                    lasting=one.settled and not one.borrowed,
                )
                worker = workers if role == "dataloader" else None
                workers += role == "dataloader"
                place = replace(trainers[owner], id=one.id, role=role, worker=worker, owner=owner)
                placed[one.id.pid] = self._helpers[one.id] = place
        for pid, one in candidates.items():
            if pid in placed:
                continue
            if one.id in self._helpers:
                placed[pid] = self._helpers[one.id]
            elif one.name == "pt_data_worker" and one.claim is not None and one.claim.rank is not None:
                claim = one.claim
                placed[pid] = Placed(
                    one.id, "dataloader", self._job(one, None), claim.rank, claim.local_rank, claim.world_size
                )

    def _place_launchers(
        self, candidates: Mapping[int, Candidate], placed: dict[int, Placed], refused: dict[int, str]
    ) -> None:
        """What started the trainers, also when none of them lives any more."""
        for trainer in [one for one in placed.values() if one.role == "trainer"]:
            one = candidates[trainer.id.pid]
            bosses = [above for above in one.ancestors if above in candidates and candidates[above].launcher]
            parent = python_parent(candidates, one)
            if trainer.launcher == "spawn" and parent is not None:
                bosses.append(parent.id.pid)
            for boss in bosses:
                if boss not in placed:
                    place = replace(
                        trainer, id=candidates[boss].id, role="launcher", rank=None, local_rank=None
                    )
                    placed[boss] = self._launchers[place.id] = place
        for pid, one in candidates.items():
            if pid in placed or pid in refused:
                continue
            if one.id in self._launchers:
                placed[pid] = self._launchers[one.id]
            elif one.launcher and one.python:
                job = self._job_id or jobs.rendezvous(one.command_line, one.host)
                job = job or (one.job.id if one.job is not None else None)
                if job is None:
                    refused[pid] = "starts ranks, but none lives, and nothing says which job they are of"
                else:
                    size = launchers.started_by(one.command_line)
                    placed[pid] = Placed(one.id, "launcher", job, group=_pid_group(one), group_size=size)

    def _forget(self, candidates: Mapping[int, Candidate]) -> None:
        alive = {one.id for one in candidates.values()}
        self._helpers = {key: one for key, one in self._helpers.items() if key in alive}
        self._launchers = {key: one for key, one in self._launchers.items() if key in alive}
        self._siblings.forget(alive)


def _with_jobs_of_children(
    candidates: Mapping[int, Candidate], trainers: Mapping[int, Claim]
) -> Mapping[int, Candidate]:
    """Lightning's parent of ranks is of their job: it sets the master's address after it was started."""
    named: dict[int, Candidate] = {}
    for pid, claim in trainers.items():
        job = candidates[pid].job
        parent = python_parent(candidates, candidates[pid])
        if claim.launcher != "lightning" or job is None or parent is None:
            continue
        if parent.job is None and parent.id.pid in trainers:
            named[parent.id.pid] = replace(parent, job=job)
    return {**candidates, **named} if named else candidates


def _launcher(candidates: Mapping[int, Candidate], one: Candidate) -> Candidate | None:
    """The nearest launcher above."""
    found = (candidates[pid] for pid in one.ancestors if pid in candidates and candidates[pid].launcher)
    return next(found, None)


def _shadowed(
    candidates: Mapping[int, Candidate],
    one: Candidate,
    bosses: Iterable[Candidate],
    placed: Mapping[int, Placed],
) -> int | None:
    """The launcher whose own claim this process merely shares, while the launcher's ranks have their own."""
    for boss in bosses:
        if boss.claim != one.claim or boss.container != one.container:
            continue
        own = [
            pid
            for pid in placed
            if boss.id.pid in candidates[pid].ancestors and candidates[pid].claim != boss.claim
        ]
        if own:
            return boss.id.pid
    return None


def _starts(candidates: Mapping[int, Candidate], one: Candidate, trainers: Mapping[int, Placed]) -> bool:
    """Whether a trainer lives below this process, so that it is no helper but on the way to one."""
    return any(one.id.pid in candidates[pid].ancestors for pid in trainers)


def _group(one: Candidate, claim: Claim, starter: Candidate | None) -> str:
    """What is counted together: ranks of one agent, or of one node's share of an MPI or Slurm job."""
    if claim.launcher in _COUNTED_BY_NODE or starter is None:
        return f"{claim.launcher} {one.container or ''}"
    return _pid_group(starter)


def _pid_group(one: Candidate) -> str:
    return f"pid {one.id.pid} {one.id.start_ticks}"
