"""Whatever processes there are: placing them never fails, and what comes out holds together."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter import launchers
from exporter.expected import ExpectedRanks
from exporter.launchers import LARGEST_NODE, LARGEST_WORLD
from exporter.rankmodel import Candidate, ProcessId
from exporter.ranktree import RankTree

NUMBERS = st.sampled_from(
    ["0", "1", "2", "7", "-1", "", "x", "3; rm", "1000000000000", "1048575", " 4 ", "٣"]
)
NAMES = st.sampled_from(
    [
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "NODE_RANK", "GROUP_RANK"),
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK", "CROSS_RANK"),
        *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE", "TORCHELASTIC_RUN_ID"),
    ]
)
ENVIRONS = st.dictionaries(NAMES, NUMBERS | st.text(max_size=8), max_size=6)
ARGVS = st.sampled_from(
    [
        ("python", "train.py"),
        ("python", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork"),
        ("python", "/bin/torchrun", "--nproc-per-node=3", "--rdzv-id=j", "train.py"),
        ("python", "t.py", "--rank", "1", "--world-size", "3"),
        ("ray::RayTrainWorker.run",),
        ("mpirun", "-np", "2"),
        ("bash",),
        (),
    ]
)


@given(ENVIRONS)
def test_claims_are_within_bounds(environ: dict[str, str]) -> None:
    try:
        claim = launchers.claim(environ)
    except launchers.Invalid:
        return
    if claim is None:
        return
    world = claim.world_size or LARGEST_WORLD
    assert claim.rank is None or 0 <= claim.rank < world <= LARGEST_WORLD
    assert claim.local_rank is None or 0 <= claim.local_rank < min(world, LARGEST_NODE)
    assert claim.local_world_size is None or 0 < claim.local_world_size <= min(world, LARGEST_NODE)


@st.composite
def candidates(draw: st.DrawFn) -> dict[int, Candidate]:
    """Processes with any parents, in rings as well."""
    count = draw(st.integers(1, 8))
    parents = [draw(st.integers(0, count)) for _ in range(count)]
    found = {}
    for number in range(count):
        pid = number + 1
        ancestors: list[int] = []
        above = parents[number]
        while above and above != pid and above not in ancestors:
            ancestors.append(above)
            above = parents[above - 1]
        argv = draw(ARGVS)
        try:
            claim = launchers.claim(draw(ENVIRONS))
        except launchers.Invalid:
            claim = None
        launcher = bool(argv) and ("torchrun" in " ".join(argv) or argv[0] == "mpirun")
        found[pid] = Candidate(
            id=ProcessId(pid, draw(st.integers(0, 3))),
            ancestors=tuple(ancestors),
            name=draw(st.sampled_from(["python", "pt_data_worker", "pt_elastic", "bash"])),
            command_line=argv,
            python=draw(st.booleans()),
            launcher=launcher,
            claim=claim,
            threads=draw(st.sampled_from([frozenset(), frozenset({"pt_gloo_runloop"}), frozenset({"pt_x"})])),
            settled=draw(st.booleans()),
        )
    return found


@settings(max_examples=100, deadline=None)
@given(st.lists(candidates(), min_size=1, max_size=4))
def test_every_tree_is_placed(looks: list[dict[int, Candidate]]) -> None:
    tree, expected = RankTree(), ExpectedRanks()
    for look in looks:
        placement = tree.place(look)
        pids = [one.id.pid for one in placement.placed]
        assert len(pids) == len(set(pids))
        assert set(pids) <= set(look)
        assert set(pids).isdisjoint(pid for pid, _ in placement.refused)
        for job in expected.jobs(placement.placed, placement.conflicts):
            assert 0 <= job.running <= len(pids)
            assert job.expected >= min(job.running, job.world_size or job.running)
            assert job.conflicts >= 0
