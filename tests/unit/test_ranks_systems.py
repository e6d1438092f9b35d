"""Ranks of batch systems, cloud services and launchers that are rarer: each with the variables that it sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from exporter.procfs import ProcFS
from exporter.ranks import RankFinder, Scan

PYTHON = "/usr/bin/python3"
TRAIN = [PYTHON, "train.py"]
GROUP = ("pt_nccl_watchdg",)
POD = "/kubepods/burstable/pod01234567-0123-0123-0123-0123456789ab/" + "a" * 64


def scan(tree: Any) -> Scan:
    return RankFinder(ProcFS(tree.root), node="n", now=lambda: 1_700_003_600.0).scan()


def elastic(rank: int, local: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "algo-1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
    }


def numbered(local: int, rank: str, local_rank: str | None, size: str | None = None) -> dict[str, str]:
    found = {rank: str(2 + local)}
    if local_rank is not None:
        found[local_rank] = str(local)
    return found | ({size: "4"} if size is not None else {})


@pytest.mark.parametrize(
    ("launcher", "rank", "local_rank", "size", "job"),
    [
        ("mvapich", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_SIZE", {"PBS_JOBID": "7.a"}),
        ("mvapich", "MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_LOCAL_RANK", "MVP_COMM_WORLD_SIZE", {"PBS_JOBID": "7.a"}),
        ("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_SIZE", {"LSB_JOBID": "555"}),
        ("horovod", "HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE", {"OAR_JOB_ID": "12"}),
        ("mpich", "PMI_RANK", "PMI_LOCAL_RANK", "PMI_SIZE", {"PBS_JOBID": "123.pbs"}),
        ("mpich", "PMI_RANK", "FLUX_TASK_LOCAL_ID", "PMI_SIZE", {"FLUX_JOB_ID": "f8xyz"}),
        ("mpich", "PMI_RANK", "CCL_LOCAL_RANK", "PMI_SIZE", {"COBALT_JOBID": "9"}),
        ("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", {"LSB_JOBID": "1"}),
        ("openmpi", "OMPI_COMM_WORLD_RANK", None, "OMPI_COMM_WORLD_SIZE", {"JOB_ID": "812", "SGE_ROOT": "/sge"}),
        ("flux", "FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_SIZE", {"FLUX_JOB_ID": "f8xyz"}),
        ("pals", "PALS_RANKID", "PALS_LOCAL_RANKID", None, {"PBS_JOBID": "123.pbs"}),
        ("alps", "ALPS_APP_PE", None, None, {"PBS_JOBID": "5"}),
        ("slurm", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", {"SLURM_JOB_ID": "77"}),
    ],
)  # fmt: skip
def test_ranks_of_a_batch_system(
    proc_tree: Any,
    launcher: str,
    rank: str,
    local_rank: str | None,
    size: str | None,
    job: Mapping[str, str],
) -> None:
    for local in range(2):
        environ = numbered(local, rank, local_rank, size) | dict(job)
        proc_tree.process(10 + local, argv=TRAIN, environ=environ)
    found = scan(proc_tree)
    assert [(one.rank, one.local_rank) for one in found.processes] == [
        (2, 0 if local_rank else None),
        (3, 1 if local_rank else None),
    ]
    assert {(one.role, one.launcher, one.job_id) for one in found.processes} == {
        ("trainer", launcher, next(iter(job.values())))
    }
    assert (found.jobs[0].running, found.jobs[0].conflicts) == (2, 0)


@pytest.mark.parametrize(
    "environ",
    [
        {"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "1", "FLUX_JOB_ID": "f1"},
        {"PALS_RANKID": "0", "PBS_JOBID": "5"},
        {"ALPS_APP_PE": "0", "PBS_JOBID": "5"},
        {"JSM_NAMESPACE_RANK": "0", "JSM_NAMESPACE_SIZE": "1", "LSB_JOBID": "5"},
    ],
)
def test_the_only_task_of_a_batch_job_counts_once_torch_runs_in_it(
    proc_tree: Any, environ: dict[str, str]
) -> None:
    proc_tree.process(10, argv=[PYTHON, "prepare.py"], environ=environ)
    found = scan(proc_tree)
    assert found.processes == ()
    assert "only task of a batch job" in found.near_misses[0].reason
    proc_tree.process(10, argv=TRAIN, environ=environ, threads=GROUP)
    assert [one.rank for one in scan(proc_tree).processes] == [0]


@pytest.mark.parametrize("name", ["FLUX_TASK_RANK", "PALS_RANKID", "HOROVOD_RANK", "MV2_COMM_WORLD_RANK"])
@pytest.mark.parametrize("value", ["-1", "1000000000000", "3; rm", "٣", "", "0x1"])
def test_nonsense_is_a_near_miss(proc_tree: Any, name: str, value: str) -> None:
    proc_tree.process(10, argv=TRAIN, environ={name: value, "PBS_JOBID": "5"}, threads=GROUP)
    found = scan(proc_tree)
    assert found.processes == ()
    assert name in found.near_misses[0].reason


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        ({"TRAINING_JOB_NAME": "pytorch-2025-01-01", "SM_CURRENT_HOST": "algo-1"}, "pytorch-2025-01-01"),
        ({"AZUREML_RUN_ID": "icy_yam_1"}, "icy_yam_1"),
        ({"AWS_BATCH_JOB_ID": "1f2e#1", "AWS_BATCH_JOB_NODE_INDEX": "1"}, "1f2e"),
        ({"SKYPILOT_TASK_ID": "sky-2025-cluster-1"}, "sky-2025-cluster-1"),
        ({"DET_TASK_ID": "7.1"}, "7.1"),
        ({"AZUREML_RUN_ID": "x", "SLURM_JOB_ID": "77"}, "77"),
        ({"AZUREML_RUN_ID": "x", "TORCHELASTIC_RUN_ID": "mine"}, "mine"),
        ({}, "algo-1:29500"),
    ],
)
def test_jobs_of_services(proc_tree: Any, environ: dict[str, str], job: str) -> None:
    proc_tree.process(9, argv=[PYTHON, "/opt/bin/torchrun", "train.py"], environ=environ)
    for local in range(2):
        proc_tree.process(10 + local, ppid=9, argv=TRAIN, environ=elastic(2 + local, local) | environ)
    found = scan(proc_tree)
    assert {one.job_id for one in found.processes} == {job}
    assert [one.rank for one in found.processes if one.role == "trainer"] == [2, 3]


def test_a_group_of_a_leader_worker_set_is_a_job(proc_tree: Any) -> None:
    environ = {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "LWS_LEADER_ADDRESS": "bert-0.bert.default",
        "LWS_WORKER_INDEX": "2",
        "RANK": "2",
        "WORLD_SIZE": "4",
        "HOSTNAME": "bert-0-2",
    }
    proc_tree.process(10, argv=TRAIN, environ=environ, cgroup=POD)
    (one,) = scan(proc_tree).processes
    assert (one.job_id, one.rank, one.pod) == ("bert-0", 2, "bert-0-2")


@pytest.mark.parametrize(
    "argv",
    [
        ["mpirun_rsh", "-np", "2", "train.py"],
        ["/opt/mv2/bin/mpispawn", "0"],
        ["jsrun", "-n", "2", "train.py"],
        ["flux-shell", "123"],
        ["aprun", "-n", "2", "train.py"],
        [PYTHON, "/opt/bin/ipexrun", "train.py"],
        [PYTHON, "/opt/bin/fabric", "run", "train.py"],
        [PYTHON, "-m", "determined.launch.torch_distributed", "train.py"],
    ],
)
def test_what_starts_the_ranks_is_their_launcher(proc_tree: Any, argv: list[str]) -> None:
    proc_tree.process(9, argv=argv)
    for local in range(2):
        proc_tree.process(10 + local, ppid=9, argv=TRAIN, environ=elastic(local, local))
    assert {one.id.pid: one.role for one in scan(proc_tree).processes} == {
        9: "launcher",
        10: "trainer",
        11: "trainer",
    }


def test_lightnings_parent_is_of_the_job_that_its_children_name(proc_tree: Any) -> None:
    proc_tree.process(8, argv=[PYTHON, "/opt/bin/fabric", "run", "train.py"])
    proc_tree.process(9, ppid=8, argv=TRAIN, environ={"LT_CLI_USED": "1"}, threads=GROUP)
    child = {
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "12",
    }
    proc_tree.process(10, ppid=9, argv=TRAIN, environ=child, threads=GROUP)
    found = scan(proc_tree)
    assert {(one.rank, one.role) for one in found.processes} == {
        (None, "launcher"),
        (0, "trainer"),
        (1, "trainer"),
    }
    assert {one.job_id for one in found.processes} == {"n:12"}


@pytest.mark.parametrize(
    ("environ", "gpu"),
    [
        ({"HIP_VISIBLE_DEVICES": "6,7"}, "7"),
        ({"ROCR_VISIBLE_DEVICES": "4,5"}, "5"),
        ({"ZE_AFFINITY_MASK": "0.0,0.1"}, "0.1"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "3"}, "3"),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "4,5"}, "1"),
        ({"CUDA_VISIBLE_DEVICES": ""}, None),
    ],
)
def test_the_gpu_by_what_is_visible(proc_tree: Any, environ: dict[str, str], gpu: str | None) -> None:
    proc_tree.process(10, argv=TRAIN, environ=elastic(1, 1) | environ)
    assert [one.gpu for one in scan(proc_tree).processes] == [gpu]
