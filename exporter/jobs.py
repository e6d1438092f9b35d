"""The job, pod and GPU of a process, from its environment and control groups.

Pure functions. Sources: pods of the PyTorchJob and MPIJob operators (JOB-worker-0), Volcano (JOB-TASK-0),
JobSet and Kubeflow's TrainJob (JOB-node-0-0), indexed Jobs (JOB-0); cgroup paths of kubelet (kubepods) and of
slurmstepd (job_N/step_N).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from exporter.procparse import Cgroup

JOB_ID_LENGTH = 128  # characters; a longer id is cut

_LOOPBACK = re.compile(r"(localhost(\..*)?|127(\.\d+){3}|\[?::1\]?|0\.0\.0\.0)\Z", re.IGNORECASE)
_NAME_VARIABLES = (
    "PYTORCHJOB_NAME",
    "TRAINJOB_NAME",
    "JOBSET_NAME",
    "VC_JOB_NAME",
    "MPIJOB_NAME",
    "JOB_NAME",
)
_BATCH_VARIABLES = ("PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "OAR_JOB_ID", "COBALT_JOBID")
# Azure ML, SageMaker, AWS Batch, SkyPilot, Determined.
_SERVICE_VARIABLES = (
    "AZUREML_RUN_ID",
    "TRAINING_JOB_NAME",
    "AWS_BATCH_JOB_ID",
    "SKYPILOT_TASK_ID",
    "DET_TASK_ID",
)
# In the order in which a runtime looks at them: CUDA, HIP, ROCm, Level Zero, CANN.
_VISIBLE_DEVICES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "ASCEND_RT_VISIBLE_DEVICES",
)
_RANDOM = r"(?:-[a-z0-9]{5})?"
_JOBSET_POD = re.compile(rf"(?P<job>.+)-[a-z0-9]+-\d+-\d+{_RANDOM}\Z")
_OPERATOR_POD = re.compile(
    rf"(?P<job>.+)-(?:master|worker|launcher|chief|evaluator|ps|server|scheduler|node|replica)-\d+{_RANDOM}\Z"
)
_VOLCANO_POD = re.compile(r"(?P<job>.+)-[a-z0-9]+-\d+\Z")
_INDEXED_POD = re.compile(rf"(?P<job>.+)-\d+{_RANDOM}\Z")
_POD_UID = re.compile(
    r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})"
)
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:/|\Z)")
_SLURM_CGROUP = re.compile(r"/job_(\d{1,10})(?:/|\Z)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the kernel keeps a process: pod and container of Kubernetes, job of Slurm; None: not there."""

    pod_uid: str | None = None
    container: str | None = None
    slurm_job: str | None = None


def place(cgroups: Sequence[Cgroup]) -> Place:
    """Pod, container and Slurm job by the paths of the control groups."""
    paths = [one.path for one in cgroups]
    uid = _search(_POD_UID, paths)
    return Place(
        pod_uid=uid.replace("_", "-") if uid else None,
        container=_search(_CONTAINER, paths),
        slurm_job=_search(_SLURM_CGROUP, paths),
    )


@dataclass(frozen=True, slots=True)
class JobName:
    """A job's id and what said it."""

    id: str
    source: Literal["run", "batch", "kubernetes", "service", "master", "ray", "mpi"]


def host(environ: Mapping[str, str], node: str, where: Place) -> str:
    """Whose loopback address it is: the pod's, the container's, else the node's."""
    return pod(environ, where) or (where.container[:12] if where.container else node)


def name(environ: Mapping[str, str], node: str, where: Place = Place()) -> JobName | None:
    """The job of a process; None where nothing says it. In this order:

    1. TORCHELASTIC_RUN_ID, unless it is `none`, torchrun's default;
    2. SLURM_JOB_ID, or the job in the cgroup's path, or the number that another batch system gave;
    3. in Kubernetes the job's name, from a variable or the pod's name, after the namespace if that is known;
    4. the run that a cloud service names;
    5. MASTER_ADDR:MASTER_PORT, a loopback address being replaced by the name of pod, container or node;
    6. Ray's number of the job, or Open MPI's.
    """
    run = environ.get("TORCHELASTIC_RUN_ID", "").strip()
    if run and run.lower() != "none":
        return JobName(clean(run), "run")
    slurm = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or where.slurm_job
    if number := (slurm or "").strip() or _batch(environ):
        return JobName(clean(number), "batch")
    if in_kubernetes(environ, where) and (owner := _pod_owner(environ)):
        space = namespace(environ)
        return JobName(clean(f"{space}.{owner}" if space else owner), "kubernetes")
    if run := _first(environ, _SERVICE_VARIABLES):
        return JobName(clean(run.partition("#")[0]), "service")  # AWS Batch adds the number of the node
    address = environ.get("MASTER_ADDR", "").strip()
    if address:
        return JobName(master(address, environ.get("MASTER_PORT", ""), host(environ, node, where)), "master")
    if ray := environ.get("RAY_JOB_ID", "").strip():
        return JobName(clean(f"ray-{ray}"), "ray")
    number = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or ""
    return JobName(clean(f"mpi-{number}"), "mpi") if number.strip() else None


def _batch(environ: Mapping[str, str]) -> str:
    """The job's number of PBS, LSF, Flux, OAR, Cobalt or Grid Engine; empty where there is none."""
    number = _first(environ, _BATCH_VARIABLES)
    return number or (environ.get("JOB_ID", "").strip() if "SGE_ROOT" in environ else "")


def _first(environ: Mapping[str, str], names: Sequence[str]) -> str:
    return next((value for name in names if (value := environ.get(name, "").strip())), "")


def master(address: str, port: str, here: str) -> str:
    """A job's id by where its ranks meet; `here` stands for a loopback address."""
    place = here if _LOOPBACK.match(address.strip()) else address.strip()
    return clean(f"{place}:{port.strip()}" if port.strip() else place)


def rendezvous(argv: Sequence[str], here: str) -> str | None:
    """A job's id by the command line of torchrun's agent: its run id, else where the agents meet."""
    found: dict[str, str] = {}
    for index, one in enumerate(argv):
        option, equals, value = one.partition("=")
        if option.startswith("--rdzv"):
            found[option.replace("_", "-")] = (
                value if equals else (argv[index + 1] if index + 1 < len(argv) else "")
            )
    run = found.get("--rdzv-id", "").strip()
    if run and run.lower() != "none":
        return clean(run)
    address, _, port = found.get("--rdzv-endpoint", "").rpartition(":")
    return master(address, port, here) if address and port.strip("0") else None


def clean(text: str) -> str:
    """A job id fit for a label: printable characters, not endless."""
    return "".join(one if one.isprintable() else "_" for one in text.strip())[:JOB_ID_LENGTH]


def in_kubernetes(environ: Mapping[str, str], where: Place) -> bool:
    return where.pod_uid is not None or "KUBERNETES_SERVICE_HOST" in environ


def pod(environ: Mapping[str, str], where: Place) -> str | None:
    """The pod's name (POD_NAME of the downward API, else the host name kubelet sets), else its uid."""
    if not in_kubernetes(environ, where):
        return None
    found = environ.get("POD_NAME") or environ.get("HOSTNAME") or where.pod_uid
    return clean(found) if found else None


def namespace(environ: Mapping[str, str]) -> str | None:
    """The pod's namespace, where the downward API gives it."""
    found = environ.get("POD_NAMESPACE") or environ.get("NAMESPACE")
    return clean(found) if found else None


def _pod_owner(environ: Mapping[str, str]) -> str | None:
    for variable in _NAME_VARIABLES:
        if value := environ.get(variable, "").strip():
            return value
    if leader := environ.get("LWS_LEADER_ADDRESS", "").strip():
        return leader.partition(".")[0]  # a LeaderWorkerSet: its leader's pod names the group
    pod_name = environ.get("POD_NAME") or environ.get("HOSTNAME") or ""
    patterns = [_OPERATOR_POD]
    if "VC_TASK_INDEX" in environ or "VK_TASK_INDEX" in environ:
        patterns.append(_VOLCANO_POD)
    if "JOB_COMPLETION_INDEX" in environ:
        # A JobSet's pods are those of an indexed Job of its own; the master's address then names the set.
        patterns = [_JOBSET_POD, _INDEXED_POD] if _in_jobset(environ, pod_name) else [_INDEXED_POD]
    for pattern in patterns:
        if match := pattern.match(pod_name):
            return match["job"]
    return None


def _in_jobset(environ: Mapping[str, str], pod_name: str) -> bool:
    match = _JOBSET_POD.match(pod_name)
    if match is None:
        return False
    masters = (environ.get("MASTER_ADDR"), environ.get("PET_MASTER_ADDR"), environ.get("PET_RDZV_ENDPOINT"))
    return any(one and f".{match['job']}" in one for one in masters) or "JOB_INDEX" in environ


def gpu(environ: Mapping[str, str], local_rank: int | None) -> str | None:
    """The GPU of a rank by the devices visible to it: the only one, or that at its local rank; None: not known."""
    visible = [one.strip() for one in _first(environ, _VISIBLE_DEVICES).split(",")]
    devices = [one for one in visible if one and one != "-1"]
    if len(devices) == 1:
        return clean(devices[0])
    return clean(devices[local_rank]) if local_rank is not None and local_rank < len(devices) else None


def _search(pattern: re.Pattern[str], paths: Sequence[str]) -> str | None:
    return next((match[1] for path in paths if (match := pattern.search(path))), None)
