"""Reads one process for its part in training: who it says it is, what torch does in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from exporter import jobs, launchers, liveenviron, roles
from exporter.procfs import ProcFS, Stat, Unreadable
from exporter.rankmodel import Candidate, ProcessId


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a process besides its place in the tree."""

    gpu: str | None = None
    pod: str | None = None
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A process as it was read. `miss`: why it would be no rank, if it is none for another reason."""

    candidate: Candidate
    facts: Facts
    miss: str | None = None
    denied: bool = False  # its environment is not ours to read


class Inspector:
    """Reads processes. Not to be asked about one in a page fault: its environment could block for ever."""

    def __init__(self, procfs: ProcFS, node: str) -> None:
        self._procfs = procfs
        self._node = node

    def read(self, stat: Stat, *, settled: bool) -> Reading | None:
        """All that the tree of ranks wants to know but the ancestors; None where there is no command line.

        `settled`: the process is old enough to have the name it will keep.
        """
        pid = stat.pid
        command_line, executable = self._procfs.cmdline(pid), self._procfs.exe(pid)
        if isinstance(command_line, Unreadable) or not command_line:
            return None
        launcher = roles.is_launcher(command_line, stat.comm)
        python = roles.is_python_name(command_line[0]) or (
            isinstance(executable, str) and roles.is_python_name(executable)
        )
        environ = self._procfs.environ(pid)
        claim, miss, denied = None, None, False
        if isinstance(environ, Unreadable):
            if python and not launcher:
                denied = environ is Unreadable.DENIED
                needed = "its user, or CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
                miss = f"its environment cannot be read ({environ.value}): needs {needed}"
            environ = {}
        else:
            try:
                claim = launchers.claim(environ)
            except launchers.Invalid as error:
                miss = str(error) if python else None
        if claim is not None and not python and not launcher:
            maps = self._procfs.maps(pid)
            python = isinstance(maps, str) and "/libpython" in maps
            if not python and isinstance(maps, str) and "/libtorch" in maps:
                miss = "has a rank and loaded torch, but runs no Python"
        if python and not launcher and claim is None and miss is None and launchers.partial(environ):
            miss = f"has {launchers.partial(environ)}, but nothing says its rank"
        where = self._place(pid)
        candidate = Candidate(
            id=ProcessId(pid, stat.start_ticks),
            ancestors=(),
            name=stat.comm,
            command_line=command_line,
            python=python,
            launcher=launcher,
            claim=claim if python or launcher else None,
            job=jobs.name(environ, self._node, where),
            host=jobs.host(environ, self._node, where),
            container=where.container,
            settled=settled,
        )
        facts = Facts(
            gpu=jobs.gpu(environ, claim.local_rank if claim is not None else None),
            pod=jobs.pod(environ, where),
            namespace=jobs.namespace(environ) if jobs.in_kubernetes(environ, where) else None,
        )
        return Reading(self.closer(candidate, stat.ppid), facts, miss, denied)

    def closer(self, one: Candidate, parent: int) -> Candidate:
        """What costs more: which threads torch started in it, what it set itself, what it writes."""
        if not one.python or one.launcher or one.name == "pt_data_worker":
            return one
        one = replace(one, borrowed=self._procfs.shares_memory(one.id.pid, parent))
        if not roles.has_process_group(one.threads):
            one = replace(one, threads=one.threads | self._torch_threads(one.id.pid))
        ray = roles.is_ray_worker(one.command_line)
        if one.claim is None and not one.asked and (ray or roles.has_process_group(one.threads)):
            one = self._ask_again(one, ray=ray)
        if not one.writes_checkpoint and roles.is_multiprocessing_child(one.command_line):
            files = self._procfs.written_files(one.id.pid)
            writes = not isinstance(files, Unreadable) and any(map(roles.is_checkpoint_file, files))
            one = replace(one, writes_checkpoint=writes)
        return one

    def _ask_again(self, one: Candidate, *, ray: bool) -> Candidate:
        """The place of a rank that its launcher gave none: from what it set itself, or its command line."""
        pid = one.id.pid
        if self._procfs.page_fault(pid):
            return one
        environ = liveenviron.read(self._procfs, pid)
        if isinstance(environ, Unreadable):
            environ = {}
        where = self._place(pid)
        claim = None
        if not roles.is_multiprocessing_child(one.command_line):  # those are numbered by their order
            try:
                claim = launchers.claim(environ)
            except launchers.Invalid:
                pass  # it was told nothing and says nonsense: as if it said nothing
            claim = claim if claim is not None and claim.rank is not None else None
        name = jobs.name(environ, self._node, where)
        return replace(
            one,
            claim=claim or launchers.from_arguments(one.command_line),
            job=name if one.job is None or (ray and name is not None) else one.job,
            asked=roles.has_process_group(one.threads),
        )

    def _torch_threads(self, pid: int) -> frozenset[str]:
        tids = self._procfs.tids(pid)
        if isinstance(tids, Unreadable) or len(tids) == 1:
            return frozenset()
        names = (self._procfs.comm(pid, tid) for tid in tids)
        return frozenset(name for name in names if isinstance(name, str) and roles.is_torch_thread(name))

    def _place(self, pid: int) -> jobs.Place:
        cgroups = self._procfs.cgroup(pid)
        return jobs.place(() if isinstance(cgroups, Unreadable) else cgroups)
