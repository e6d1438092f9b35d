"""What frames mean: one table from (file, function) to a kind of activity.

The first entry that matches a frame counts. `path` is searched in the file name, `function` must match the whole
function name without its class. A site adds entries of its own in front (`with_entries`): see docs/verdict.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from snapshotter.stacks.model import Frame

Kind = Literal[
    # waiting for other ranks
    "collective",
    "point_to_point",
    "device",  # for the accelerator, which may itself wait for others
    "backward",  # autograd's engine: computes, and waits for collectives of wrapped modules
    "rendezvous",  # the job is not yet, or no longer, connected
    # own work that gives a cause wherever it is called from
    "dataloader",  # the main process waits for its workers
    "data",
    "checkpoint",
    "compile",
    "debugger",
    "teardown",
    "logging",  # an experiment tracker
    "garbage",
    # own work whose cause an outer frame may tell better
    "storage",
    "compute",
    "lock",
    "sleep",
    "subprocess",
    "network",
    "user",  # code we know nothing of
    # says nothing by itself
    "idle",  # a worker waits for work
    "plumbing",
]

WAITS: frozenset[str] = frozenset({"collective", "point_to_point", "device", "backward", "rendezvous"})
DECISIVE: frozenset[str] = frozenset(
    {"dataloader", "data", "checkpoint", "compile", "debugger", "teardown", "logging", "garbage", "idle"}
)

CAUSES: dict[str, str] = {
    "collective": "communication",
    "point_to_point": "communication",
    "device": "communication",
    "backward": "communication",
    "rendezvous": "communication",
    "dataloader": "data",
    "data": "data",
    "checkpoint": "checkpoint",
    "compile": "compile",
    "storage": "storage_io",
    "compute": "compute",
    "idle": "none",
    "plumbing": "unknown",
}  # every other kind: application


def cause_of(kind: str) -> str:
    """The cause that a report names for this kind of activity."""
    return CAUSES.get(kind, "application")


@dataclass(frozen=True, slots=True)
class Entry:
    """One piece of knowledge. `fallback`: what a plumbing frame means if nothing outside it tells more."""

    kind: Kind
    path: str = ""
    function: str = ""
    fallback: Kind | None = None


_STDLIB = r"(?:^|/)lib(?:64)?/python3\.\d+t?/(?!site-packages/|dist-packages/)"
_COLLECTIVES = (
    r"_?(?:grouped_|hierarchical_|monitored_|_)?(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|"
    r"reduce|gather|scatter)(?:_coalesced|_into_tensor|_tensor|_object|_object_list|_single|_multigpu|_base|_async)*_?"
)
_CLEAR_COLLECTIVES = (
    r"\w*(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|monitored_barrier|barrier)\w*|broadcast_\w+"
)
_P2P = r"_?(?:i?send|i?recv|batch_isend_irecv|send_object_list|recv_object_list|recv_anysource|_wait_batch_p2p|sendrecv)\w*"

TABLE: tuple[Entry, ...] = (
    # --- debuggers and prompts
    Entry(
        "debugger",
        r"(?:^|/)(?:pdb|bdb|ipdb/\w+|pudb/\w+|debugpy/.*|pydevd\w*|code|rpdb)\.py$",
        r"(?!run$|runcall$).*",
    ),
    Entry("debugger", r"/(?:debugpy|pydevd|IPython/terminal|IPython/core/debugger|prompt_toolkit)"),
    # --- checkpoints
    Entry("plumbing", r"torch/utils/checkpoint\.py|activation_checkpointing/|checkpoint_activations\.py"),
    Entry("checkpoint", r"torch/serialization\.py|torch/distributed/checkpoint/|safetensors/"),
    Entry("checkpoint", r"megatron/(?:training/checkpointing\.py|core/dist_checkpointing/)|orbax/"),
    Entry("checkpoint", r"deepspeed/runtime/checkpoint_engine/|nemo/.*checkpoint"),
    # --- compilers
    Entry(
        "compute",
        r"torch/_inductor/(?:output_code|utils|cudagraph_trees)\.py|/torchinductor_\w+/|torch/_functorch/_aot_autograd/runtime_wrappers\.py",
    ),
    Entry("plumbing", r"torch/_dynamo/(?:eval_frame|external_utils|decorators)\.py"),
    Entry(
        "compile",
        r"torch/(?:_inductor|_dynamo|_functorch|fx|_export)/|torch/utils/(?:cpp_extension|file_baton|_cpp_extension\w*)\.py",
    ),
    Entry("compile", r"triton/(?:compiler|backends)/|triton/runtime/(?:build|autotuner|cache)\.py"),
    Entry(
        "compile",
        r"jax/_src/compiler\.py|jax/_src/interpreters/(?:mlir|partial_eval)\.py|tensorrt/|torch_xla/core/dynamo_bridge\.py",
    ),
    # --- waiting for others
    Entry("rendezvous", r"torch/distributed/(?:rendezvous\.py|elastic/)"),
    Entry(
        "rendezvous",
        r"torch/distributed/",
        r"init_process_group|_new_process_group_helper|_store_based_barrier|new_group|split_group|init_device_mesh|_create_\w*store",
    ),
    Entry("rendezvous", r"torch/distributed/", r"destroy_process_group|_shutdown_backend"),
    Entry("point_to_point", r"torch/distributed/", _P2P),
    Entry("point_to_point", r"torch/distributed/pipelining/|deepspeed/runtime/pipe/|p2p_communication\.py"),
    Entry("collective", r"torch/distributed/(?!checkpoint/)", _COLLECTIVES),
    Entry(
        "collective",
        r"torch/distributed/(?:_functional_collectives|_tensor|tensor|nn/functional|_collective_utils)",
    ),
    Entry(
        "collective",
        r"torch/distributed/.*(?:fsdp|_composable)",
        r"_?\w*(?:unshard|wait|all_gather|reduce_grad|reduce_scatter|post_backward|root_pre_forward|sync)\w*",
    ),
    Entry(
        "plumbing",
        r"torch/distributed/(?:fsdp|_composable|algorithms|c10d_logger|_state_dict_utils|utils|device_mesh)",
    ),
    Entry("collective", r"torch/distributed/", r"wait|result|synchronize|block_current_stream"),
    Entry(
        "collective",
        r"torch/nn/parallel/distributed\.py",
        r"_sync\w*|_pre_forward|_distributed_broadcast_coalesced|_verify_param\w*|join|_ddp_init_helper|_check_\w+",
    ),
    Entry(
        "collective",
        r"megatron/core/distributed/|megatron/core/tensor_parallel/mappings\.py",
        r"\w*(?:sync|reduce|gather|wait)\w*",
    ),
    Entry(
        "collective",
        r"deepspeed/(?:comm/|utils/comms)|deepspeed/runtime/zero/",
        r"(?!forward$|backward$|step$)\w*(?:reduce|gather|wait|barrier|broadcast|fetch|synchron)\w*",
    ),
    Entry("collective", r"horovod/(?:torch|tensorflow|common|mxnet)/"),
    Entry("collective", r"jax/experimental/multihost_utils\.py|jax/_src/distributed\.py"),
    Entry(
        "device",
        r"jax/_src/(?:api|array|dispatch)\.py",
        r"block_until_ready|_value|__array__|_wait\w*|wait_for_tokens",
    ),
    Entry(
        "point_to_point",
        r"ray/(?:_private/worker|_private/client_mode_hook|util/collective|actor|experimental/channel)",
        r"get\w*|wait|recv\w*|send\w*|all\w+|barrier|read|write",
    ),
    Entry("collective", r"mpi4py/|torchft/|/oneccl|bagua/"),
    Entry(
        "device",
        r"torch/(?:cuda|npu|xpu|hpu|musa|mps|accelerator)/|torch_(?:npu|xla|mlu)/|cupy/cuda/",
        r"synchronize|wait|query|wait_event|wait_stream|mark_step|current_stream|_sleep",
    ),
    Entry("device", r"torch/amp/grad_scaler\.py", r"_maybe_opt_step|unscale_|_unscale_grads_|update"),
    Entry("backward", r"torch/autograd/graph\.py", r"_engine_run_backward"),
    Entry("backward", r"torch/autograd/__init__\.py|torch/_tensor\.py", r"backward|grad"),
    # --- data
    Entry(
        "dataloader",
        r"torch/utils/data/dataloader\.py",
        r"_try_get_data|_get_data|_shutdown_workers|_next_index",
    ),
    Entry("idle", r"torch/utils/data/_utils/worker\.py", r"_worker_loop"),
    Entry("plumbing", r"torch/utils/data/_utils/(?:worker|pin_memory|fetch)\.py"),
    Entry(
        "data",
        r"torch/utils/data/|torchdata/|webdataset/|/wids/|streaming/base/|nvidia/dali/|litdata/|ffcv/|petastorm/",
    ),
    Entry(
        "data",
        r"datasets/(?:arrow_dataset|iterable_dataset|arrow_reader|formatting|builder|load)|torchvision/(?:datasets|io|transforms)/|torchaudio/(?:datasets|backend)|grain/|tensorflow_datasets/|megatron/core/datasets/|lightning/.*fetchers\.py|decord/|indexed_dataset",
    ),
    Entry("data", r"accelerate/data_loader\.py|transformers/(?:tokenization\w*|data/)|tokenizers/"),
    # --- experiment trackers
    Entry("logging", r"/(?:wandb|mlflow|tensorboard|tensorboardX|comet_ml|neptune|aim|clearml|swanlab)/"),
    # --- end of the process, garbage
    Entry("teardown", r"", r"_python_exit|_exit_function|_shutdown|_run_exitfuncs|_cleanup_atexit"),
    Entry("garbage", r"/gc\.py$|", r"gc_collect|collect_garbage|__del__|_gc\w*"),
    # --- storage clients; what they are read for is told by the caller
    Entry(
        "storage",
        r"/(?:boto3|botocore|s3transfer|s3fs|aiobotocore|fsspec|gcsfs|adlfs|ossfs|oss2|smart_open|pyarrow|h5py|zarr|lmdb|hdfs|minio|tensorstore|s3torchconnector|huggingface_hub|multistorageclient)/",
    ),
    Entry("storage", r"/(?:urllib3|requests|aiohttp|httpx|httpcore|http)/|/urllib/"),
    Entry(
        "storage",
        r"(?:^|/)(?:tarfile|zipfile|shutil|gzip|bz2|lzma|genericpath|posixpath|glob|pathlib|fnmatch|tempfile|_pyio)(?:/\w+)?\.py$|numpy/(?:lib/(?:npyio|_npyio_impl|format|_format_impl)|_?core/(?:memmap|records))\.py",
    ),
    # --- compute libraries
    Entry("plumbing", r"torch/nn/modules/module\.py", r"_call_impl|_wrapped_call_impl|_slow_forward"),
    Entry(
        "plumbing",
        r"torch/nn/parallel/|torch/utils/_contextlib\.py|torch/_compile\.py|torch/autograd/grad_mode\.py|torch/amp/autocast_mode\.py|torch/_library/|torch/profiler/",
    ),
    Entry(
        "compute",
        r"torch/(?:nn|optim|_ops|functional|_tensor|linalg|fft|special|sparse|_refs|_prims|autograd|cuda|amp|backends|ao|jit|_jit_internal|_C)\b",
    ),
    Entry(
        "compute",
        r"/(?:numpy|scipy|pandas|sklearn|flash_attn|apex|transformer_engine|xformers|bitsandbytes|einops|triton|cupy|numba|deep_ep|torchao|liger_kernel|mamba_ssm|jax|jaxlib|flax)/",
    ),
    # --- standard library
    Entry("plumbing", r"(?:^|/)subprocess\.py$", fallback="subprocess"),
    Entry(
        "plumbing", r"(?:^|/)multiprocessing/(?:popen_\w+|process|pool|managers)\.py$", fallback="subprocess"
    ),
    Entry(
        "plumbing",
        r"(?:^|/)(?:multiprocessing/(?:connection|queues|synchronize)|queue|threading|_threading_local|concurrent/futures/.*)\.py$",
        fallback="lock",
    ),
    Entry("plumbing", r"(?:^|/)(?:filelock|portalocker|fasteners)/", fallback="lock"),
    Entry(
        "plumbing",
        r"(?:^|/)(?:socket|ssl|selectors|select|socketserver|asyncio/.*|grpc/.*)\.py$|/grpc/",
        fallback="network",
    ),
    Entry("plumbing", _STDLIB),
    Entry("plumbing", r"^<(?:frozen|string|stdin|__array_function__|decorator)|^$"),
    # --- names that tell, in code we do not know
    Entry("collective", r"", _CLEAR_COLLECTIVES),
    Entry("point_to_point", r"", r"(?:recv|send)_(?:forward|backward)\w*|p2p_\w+|_communicate"),
    Entry(
        "checkpoint",
        r"",
        r"\w*(?:save|load|write|restore|resume|dump|upload|download|persist)\w*(?:checkpoint|ckpt|snapshot|state_dict|weights)\w*|\w*(?:checkpoint|ckpt)_?(?:save|load|write|restore|to_disk)\w*",
    ),
    Entry(
        "checkpoint",
        r"(?:^|[/_])(?:checkpoint(?:s|er|ers|ing)?|ckpt\w*)(?:_\w+)?\.py$",
        r"(?!forward$|backward$|apply$|checkpoint$).*",
    ),
    Entry(
        "data",
        r"",
        r"__getitems?__|\w*(?:get|next|load|fetch|read|prepare)_(?:\w+_)?(?:batch(?:es)?|samples?|shards?|examples?|records?|dataset)\w*|\w*collate\w*|\w*tokeni[sz]e\w*|\w*decode_(?:image|video|audio|jpeg)\w*|\w*dataload\w*|\w*dataset\w*|prefetch\w*",
    ),
    Entry(
        "data",
        r"(?:^|[/_])(?:data_?sets?|data_?load(?:er|ers|ing)?|data_?(?:module|pipe|pipeline|iter|iterator|source|reader|feeder|stream)s?|loaders?|samplers?|token[iy]z\w+|collat\w+|shards?|tfrecords?|parquet\w*|prefetch\w*|data)(?:_\w+)?\.py$",
        r"(?!main$|<module>$|train\w*$|run$|fit$).*",
    ),
    Entry(
        "data",
        r"/(?:datasets?|dataloaders?|data_?loading|data_?pipelines?)/[^/]+\.py$",
        r"(?!main$|<module>$|train\w*$|run$|fit$).*",
    ),
    Entry(
        "storage",
        r"",
        r"p?read(?:_?(?:bytes|all|line|lines|into|file|block|chunk|from|text)\w*)?|read_from_\w+|open_(?:file|shard)\w*|_?open|listdir|scandir|fsync|mmap_\w+|copy_?(?:file|tree)\w*",
    ),
    Entry("lock", r"", r"\w*(?:acquire|lock|mutex|semaphore)\w*"),
    Entry("sleep", r"", r"\w*sleep\w*|backoff\w*"),
    Entry("plumbing", r"", r"<module>|main|_main|__main__|wrapper|inner|_?wrapped|decorat\w*|run_?main"),
    Entry("plumbing", r"(?:^|/)(?:click|typer|hydra|fire|absl|lightning_utilities)/"),
)


@dataclass(slots=True)
class Knowledge:
    """The table with its look-ups remembered."""

    entries: tuple[Entry, ...] = TABLE
    _compiled: list[tuple[Entry, re.Pattern[str] | None, re.Pattern[str] | None]] = field(
        default_factory=list
    )
    _known: dict[tuple[str, str], Entry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for entry in self.entries:
            path = re.compile(entry.path) if entry.path else None
            function = re.compile(entry.function) if entry.function else None
            self._compiled.append((entry, path, function))

    def look_up(self, frame: Frame) -> Entry:
        """The entry for this frame; one of kind `user` where nothing is known."""
        key = (frame.name, frame.filename)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._search(*key)
        return found

    def _search(self, name: str, filename: str) -> Entry:
        function = name.rsplit(".", 1)[-1]
        for entry, path, wanted in self._compiled:
            if (path is None or path.search(filename)) and (wanted is None or wanted.fullmatch(function)):
                return entry
        return _USER


_USER = Entry("user")


def with_entries(entries: tuple[Entry, ...]) -> Knowledge:
    """The table with a site's own entries in front. Raises re.error for a bad pattern."""
    return Knowledge(entries + TABLE)
