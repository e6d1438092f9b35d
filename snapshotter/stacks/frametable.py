"""The table of frame knowledge, by subject. The first entry that matches a frame counts: order matters.

Paths are those of the projects' sources, seen in stacks or read in their repositories (PyTorch 1.13 to 2.13,
Megatron-LM core 0.6 to 0.14, DeepSpeed 0.18, Horovod 0.28, Ray 2, JAX 0.4 to 0.8, Triton 3, vLLM 0.5 to 0.24,
SGLang 0.5).
"""

from __future__ import annotations

from snapshotter.stacks.knowledge import Entry


def _any(*patterns: str) -> str:
    return "|".join(f"(?:{pattern})" for pattern in patterns)


def _package(*names: str) -> str:
    """Installed packages of these names; a folder of the user's may be called the same."""
    return rf"/(?:site|dist)-packages/(?:{'|'.join(names)})(?:/|\.py)"


def _stdlib(*modules: str) -> str:
    """Modules of the standard library, files or packages; frozen ones too."""
    return rf"(?:/lib(?:64)?/python3\.\d+t?/|^<frozen )(?:{'|'.join(modules)})(?:\.py|/[\w/]+\.py|>)$"


_STDLIB = r"/lib(?:64)?/python3\.\d+t?/(?!(?:site|dist)-packages/)"

# Functions that run a whole program say nothing of what it does at the moment.
_INNER = r"(?!(?:main|<module>|wrapper|run|run_\w+|train|train_\w+|fit|launch|launch_\w+|worker|__init__)$).*"

_COLLECTIVES = (
    r"_*(?:grouped_|hierarchical_|monitored_)?"
    r"(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|reduce|gather|scatter)"
    r"(?:v|_coalesced|_into_tensor|_tensor|_object_list|_object|_single|_multigpu|_base|_async|_out)*_?"
)
_CLEARLY_COLLECTIVE = (
    r"\w*(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|monitored_barrier)\w*",
    r"(?:\w+_)?barrier(?:_\w+)?",
    r"broadcast_(?:params?|parameters|buffers?|weights|states?|tensors?|model\w*|object\w*)",
    r"(?:sync|wait)_(?:all|ranks?|peers?|others|workers|everyone|world|grads?|gradients)\w*",
)
_P2P = r"_?(?:batch_)?(?:i?send|i?recv|sendrecv)(?:_\w+)?|batch_isend_irecv"

_SERVING = r"/(?:vllm|sglang(?:/srt)?)/distributed/"  # engines that train with reinforcement run within ranks

# A module that is being imported does nothing of its package's purpose yet.
IMPORTS = (
    Entry("plumbing", r"/(?:site|dist)-packages/", "<module>"),
    Entry(
        "storage",
        r"^<frozen importlib\._bootstrap_external>$",
        r"get_data|set_data|_write_atomic|path_stats?|_path_\w+|_fill_cache|find_spec",
    ),
)

DEBUGGERS = (
    Entry(
        "debugger",
        _stdlib("pdb", "bdb"),
        r"interaction|user_\w+|dispatch_\w+|trace_dispatch|set_trace|_?cmdloop",
    ),
    Entry(
        "debugger",
        _stdlib("code", "codeop", "_pyrepl"),
        r"interact|raw_input|push|readline|input|multiline_input",
    ),
    Entry("debugger", _package("ipdb", "pudb", "rpdb", "remote_pdb", "web_pdb"), _INNER),
    Entry(
        "debugger", _package("debugpy", "pydevd\\w*"), r"\w*(?:do_wait_suspend|wait_for_client|wait_until)\w*"
    ),
    Entry("debugger", _package("IPython"), r"embed|mainloop|interact|interaction|prompt_for_code"),
    Entry(
        "plumbing",
        _any(_stdlib("pdb", "bdb", "runpy", "cProfile", "profile"), _package("debugpy", "pydevd\\w*")),
    ),
)

CHECKPOINTS = (
    # Activation checkpointing shares the word and nothing else.
    Entry(
        "plumbing", r"torch/utils/checkpoint\.py|activation_checkpoint|checkpoint_activations|recompute\.py"
    ),
    Entry("plumbing", r"tensor_parallel/random\.py"),
    Entry(
        "checkpoint",
        r"torch/serialization\.py|torch/distributed/checkpoint/|torch/distributed/_shard/checkpoint/",
    ),
    Entry(
        "checkpoint",
        _package(
            "safetensors", "torchsnapshot", "orbax", "flashcheckpoint", "nvidia_resiliency_ext/checkpointing"
        ),
    ),
    Entry("checkpoint", r"megatron/(?:training/)?checkpointing\.py|megatron/core/dist_checkpointing/"),
    Entry("checkpoint", r"deepspeed/(?:runtime/checkpoint_engine|checkpoint)/"),
)

COMPILERS = (
    Entry(
        "plumbing",
        r"torch/_dynamo/(?:eval_frame|external_utils|decorators|callback|utils)\.py|<eval_with_key>",
    ),
    Entry(
        "plumbing",
        r"torch/_functorch/(?:_aot_autograd/(?:runtime_wrappers|utils)|vmap|apis|eager_transforms)",
    ),
    Entry("plumbing", r"torch/fx/(?:graph_module|traceback|_compatibility)\.py"),
    Entry(
        "compile",
        r"torch/_inductor/runtime/(?:triton_heuristics|benchmarking|coordinate_descent_tuner)\.py|triton/testing\.py",
        r"_?make_launchers?|precompile\w*|\w*bench\w*|\w*autotune\w*|\w*coordesc\w*|\w*coordinate_descent\w*",
    ),
    Entry(
        "compute",
        r"torch/_inductor/(?:output_code|utils|cudagraph_trees|runtime/\w+)\.py|/torchinductor_[^/]+/",
    ),
    Entry("compile", r"torch/(?:_inductor|_dynamo|_functorch|fx|_export|export|onnx|_subclasses)/"),
    Entry("compile", r"torch/utils/file_baton\.py", "wait", unspecific=True),
    Entry("compile", r"torch/utils/(?:cpp_extension|file_baton|_cpp_extension_versioner|hipify/\w+)\.py"),
    Entry("compile", r"triton/(?:compiler|backends|runtime/(?:build|autotuner|cache))"),
    Entry("compile", r"triton/runtime/jit\.py", r"_do_compile|compile|preload|warmup|_pack_args"),
    Entry(
        "compile",
        r"jax/_src/(?:compiler|compilation_cache)\.py|jax/_src/interpreters/(?:mlir|partial_eval)\.py",
    ),
    Entry(
        "compile",
        r"torch_xla/core/dynamo_bridge\.py|tvm/|" + _package("tensorrt\\w*", "torch_tensorrt", "cutlass"),
    ),
)

TORCH_DISTRIBUTED = (
    Entry(
        "rendezvous", r"torch/distributed/(?:rendezvous\.py|elastic/(?:rendezvous|utils/store|agent)|run\.py)"
    ),
    Entry(
        "rendezvous",
        r"torch/distributed/",
        _any(
            r"init_process_group|_new_process_group_helper|_store_based_barrier|new_(?:sub)?groups?\w*|split_group",
            r"_new_group_with_tag|init_device_mesh|_init_process_groups|_create_\w*store|init_rpc|_init_rpc_\w+",
            r"destroy_process_group|_shutdown_backend|shutdown|_abort_process_group|_all_gather_worker_names",
        ),
    ),
    Entry("point_to_point", r"torch/distributed/(?!checkpoint/|fsdp/|tensor/)", _P2P),
    Entry("point_to_point", r"torch/distributed/(?:pipelining|pipeline)/", r"\w*(?:wait|recv|send)\w*"),
    Entry("point_to_point", r"torch/distributed/rpc/", r"rpc_sync|wait|_wait_all|remote|to_here"),
    Entry("collective", r"torch/distributed/(?!checkpoint/)", _COLLECTIVES),
    Entry("collective", r"torch/distributed/_functional_collectives|torch/distributed/nn/functional"),
    Entry(
        "collective", r"torch/distributed/_?tensor/(?:_redistribute|_collective_utils|placement_types)\.py"
    ),
    Entry(
        "collective",
        r"torch/distributed/(?:fsdp|_composable|_fsdp)|torch/distributed/algorithms/_?(?:join|ddp_comm)",
        r"\w*(?:unshard|wait|all_gather|reduce_grad|reduce_scatter|root_pre_forward|sync|notify_join|allreduce)\w*",
        unspecific=True,
    ),
    Entry(
        "collective",
        r"torch/distributed/",
        r"wait|result|synchronize|block_current_stream|wait_tensor",
        unspecific=True,
    ),
    Entry(
        "collective",
        r"torch/nn/parallel/distributed\.py",
        r"_sync\w*|_\w*broadcast\w*|_pre_forward|_verify_\w+|_ddp_init_helper|_check_\w+|_build_\w+|join",
        unspecific=True,
    ),
    Entry("collective", r"torch/nn/modules/_functions\.py", r"forward|backward", unspecific=True),
    Entry("compute", r"torch/distributed/_?tensor/|torch/distributed/optim/"),
    Entry("plumbing", r"torch/distributed/"),
)

DEVICE = (
    Entry(
        "device",
        _any(
            r"torch/(?:cuda|npu|xpu|hpu|musa|mps|mtia|accelerator)/",
            _package("torch_npu", "torch_xla", "torch_mlu", "habana_frameworks", "cupy"),
        ),
        r"synchronize|wait|wait_event|wait_stream|query|mark_step|wait_device_ops|_sleep|elapsed_time|_synchronize",
        unspecific=True,
    ),
    Entry(
        "device",
        r"torch/(?:cuda/)?amp/grad_scaler\.py",
        r"_maybe_opt_step|step|update|unscale_|_unscale_grads_",
        unspecific=True,
    ),
    Entry(
        "device",
        r"torch/_tensor\.py",
        r"__array__|__format__|__repr__|__contains__|tolist|item",
        unspecific=True,
    ),
    Entry(
        "device",
        r"jax/_src/(?:api|array|dispatch|core)\.py",
        r"\w*block_until_ready|_value|__array__|wait_\w+|device_get",
        unspecific=True,
    ),
    Entry("backward", r"torch/autograd/graph\.py", r"_engine_run_backward", unspecific=True),
    Entry("backward", r"torch/autograd/__init__\.py|torch/_tensor\.py", r"backward|grad", unspecific=True),
)

FRAMEWORKS = (
    Entry("point_to_point", r"p2p_communication\.py|pipeline_parallel/p2p\w*\.py"),
    Entry("point_to_point", r"deepspeed/runtime/pipe/", r"_exec_(?:recv|send)\w*|_?(?:recv|send|wait)\w*"),
    Entry(
        "collective",
        r"megatron/core/(?:distributed|tensor_parallel/mappings|optimizer|transformer/moe)",
        r"\w*(?:grad_sync|param_sync|reduce|gather|all_?to_?all|wait)\w*",
        unspecific=True,
    ),
    Entry(
        "collective",
        r"deepspeed/(?:comm|runtime/zero|runtime/comm|utils/groups)",
        r"(?!(?:forward|backward|step)$)\w*(?:reduce|gather|wait|barrier|broadcast|fetch_sub|synchron|all_to_all)\w*",
        unspecific=True,
    ),
    Entry("plumbing", r"deepspeed/comm/"),
    # What reads a norm of all gradients from the device waits for the collectives that bring them.
    Entry(
        "device",
        r"deepspeed/runtime/|megatron/core/optimizer/|torch/nn/utils/clip_grad\.py",
        r"\w*(?:grads?_norm|global_norm|overflow|(?:inf|nan)_or_(?:inf|nan)|count_zeros)\w*|partition_grads",
        unspecific=True,
    ),
    Entry(
        "point_to_point",
        r"/vllm/distributed/device_communicators/shm_broadcast\.py",
        r"acquire_\w+|(?:de|en)queue|broadcast_object|wait|recv",
    ),
    Entry("collective", _SERVING, _any(_COLLECTIVES, *_CLEARLY_COLLECTIVE, r"broadcast_\w+")),
    Entry("point_to_point", _SERVING, _P2P),
    Entry("collective", r"horovod/(?:torch|tensorflow|common|mxnet|keras|runner)"),
    Entry("collective", r"jax/experimental/multihost_utils\.py|jax/_src/distributed\.py"),
    Entry(
        "collective",
        _package("mpi4py", "torchft", "oneccl\\w*", "bagua", "byteps", "colossalai/communication"),
    ),
    Entry("collective", r"/ray/util/collective/"),
    # What fetches an object says less than who asks for it: Ray Data's iterators fetch batches this way.
    Entry("plumbing", r"/ray/_private/", r"get|get_objects|wait", fallback="point_to_point"),
    Entry(
        "point_to_point",
        r"/ray/(?:_private|actor|experimental/channel|train|util|dag|serve|_common)",
        r"get|get_objects|wait|recv\w*|send\w*|read|write|main_loop|run_task_loop|report|wait_for_next\w*|barrier",
    ),
    Entry(
        "compute", r"megatron/core/(?:transformer|models|fusions|tensor_parallel|optimizer|ssm|inference)/"
    ),
    Entry("compute", r"/(?:transformers|diffusers)/(?:models|activations|integrations|optimization)"),
    Entry(
        "compute",
        _any(_package("timm", "torchvision/(?:models|ops)", "torchaudio/models", "fairscale/optim")),
    ),
)

DATA = (
    Entry(
        "dataloader",
        r"torch/utils/data/dataloader\.py|torchdata/stateful_dataloader/stateful_dataloader\.py",
        r"_try_get_data|_get_data|_shutdown_workers|_try_put_index",
    ),
    Entry(
        "idle",
        r"torch/utils/data/_utils/worker\.py|torchdata/stateful_dataloader/worker\.py",
        r"_worker_loop",
    ),
    Entry("plumbing", r"torchdata/stateful_dataloader/worker\.py"),
    Entry("plumbing", r"torch/utils/data/_utils/(?:worker|pin_memory|fetch|signal_handling)\.py"),
    Entry("data", r"torch/utils/data/"),
    Entry(
        "data",
        _package(
            "torchdata",
            "webdataset",
            "wids",
            "streaming",
            "nvidia/dali",
            "litdata",
            "ffcv",
            "petastorm",
            "ray/data",
        ),
    ),
    Entry("data", r"webdataset/|streaming/base/|nvidia/dali/|energon/|litdata/|mosaicml-streaming"),
    Entry("data", r"megatron/core/datasets/|megatron/(?:legacy/)?data/|indexed_dataset\.py"),
    Entry(
        "data",
        r"lightning/.*(?:fetchers|combined_loader)\.py|accelerate/data_loader\.py|transformers/(?:data/|tokeniz)",
    ),
    Entry(
        "data",
        _package(
            "datasets", "tokenizers", "sentencepiece", "tiktoken", "grain", "tensorflow_datasets", "decord"
        ),
    ),
    Entry(
        "data",
        _package("torchvision/(?:datasets|io|transforms)", "torchaudio", "torchcodec", "av", "PIL", "cv2"),
    ),
    Entry(
        "data",
        _package("albumentations", "librosa", "soundfile", "tensorflow/python/data", "deeplake", "hub"),
    ),
    # Formats that data sets come in, and hardly anything else.
    Entry(
        "data",
        _package("zarr", "lmdb", "xarray", "netCDF4", "rasterio", "nibabel", "pydicom", "lance", "kaldiio"),
    ),
)

TRACKING = (
    Entry("plumbing", _package("wandb"), r"_run_job|agent|run|pyagent|_run_jobs_from_queue"),
    Entry(
        "tracking",
        _package("wandb", "mlflow", "tensorboard", "tensorboardX", "comet_ml", "neptune", "aim", "clearml"),
    ),
    Entry("tracking", _package("swanlab", "sentry_sdk", "trackio") + r"|torch/utils/tensorboard/"),
)

TEARDOWN = (
    Entry("teardown", _stdlib("threading", "concurrent"), r"_shutdown|_python_exit"),
    Entry(
        "teardown",
        _stdlib("multiprocessing", "atexit", "weakref"),
        r"_exit_function|_run_exitfuncs|_exitfunc|_run_finalizers",
    ),
    Entry("garbage", "", r"__del__|\w*(?:gc_collect|collect_gc|garbage)\w*|_?(?:\w+_)?gc(?:_\w+)?"),
)

STORAGE = (
    Entry("network", _any(_package("requests", "httpx"), _stdlib("urllib")), r"post|put|patch|delete"),
    Entry(
        "storage",
        _package(
            *(
                "boto3",
                "botocore",
                "s3transfer",
                "s3fs",
                "aiobotocore",
                "fsspec",
                "gcsfs",
                "adlfs",
                "ossfs",
                "oss2",
            ),
            *(
                "google/cloud/storage",
                "azure/storage",
                "smart_open",
                "pyarrow",
                "h5py",
                "hdfs",
                "minio",
            ),
            *(
                "tensorstore",
                "s3torchconnector\\w*",
                "huggingface_hub",
                "multistorageclient",
                "obstore",
                "kvikio",
            ),
            *(
                "urllib3",
                "requests",
                "aiohttp",
                "httpx",
                "httpcore",
                "gdown",
                "wget",
                "paramiko",
                "cloudpathlib",
            ),
        ),
    ),
    Entry(
        "storage",
        _stdlib(
            "urllib", "http", "ftplib", "tarfile", "zipfile", "shutil", "gzip", "bz2", "lzma", "_compression"
        ),
    ),
    Entry(
        "storage",
        _stdlib(
            "genericpath", "posixpath", "glob", "pathlib", "fnmatch", "tempfile", "_pyio", "fileinput", "mmap"
        ),
    ),
    Entry("storage", r"numpy/(?:lib/(?:_?npyio|format|_npyio_impl|_format_impl)|_?core/(?:memmap|records))"),
)

COMPUTE = (
    Entry(
        "plumbing",
        r"torch/nn/modules/module\.py",
        r"_call_impl|_wrapped_call_impl|_slow_forward|_lazy_call\w*",
    ),
    Entry("plumbing", r"torch/nn/parallel/|torch/nn/modules/(?:container|module)\.py"),
    Entry(
        "plumbing",
        r"torch/(?:utils/_contextlib|_compile|autograd/(?:grad_mode|profiler)|amp/autocast_mode|profiler/)",
    ),
    # An operator called by name: a collective's caller may be outside of it (wait_tensor since PyTorch 2.1).
    Entry("plumbing", r"torch/(?:_ops\.py|_library/|utils/_python_dispatch\.py)", fallback="compute"),
    Entry("plumbing", r"torch/(?:hub|_tensor|utils/hooks|utils/_device|overrides)"),
    Entry("plumbing", r"torch/multiprocessing/", fallback="subprocess"),
    Entry("compute", r"(?:^|/)torch/(?!testing/|utils/)"),
    Entry("plumbing", r"(?:^|/)torch/"),
    Entry(
        "compute",
        _package(
            *(
                "numpy",
                "scipy",
                "pandas",
                "polars",
                "sklearn",
                "flash_attn\\w*",
                "flash_attn_interface",
                "apex",
            ),
            *(
                "transformer_engine",
                "xformers",
                "bitsandbytes",
                "einops",
                "triton",
                "cupy",
                "numba",
                "deep_ep",
            ),
            *(
                "deep_gemm",
                "torchao",
                "liger_kernel",
                "mamba_ssm",
                "causal_conv1d",
                "jax",
                "jaxlib",
                "flax",
                "fla",
            ),
            *(
                "optax",
                "tensorflow",
                "grouped_gemm",
                "megablocks",
                "sageattention",
                "vllm",
                "sglang",
                "flashinfer",
            ),
        ),
    ),
    Entry("compute", r"jax/_src/|deepspeed/ops/|apex/|transformer_engine/|flash_attn/"),
)

STANDARD_LIBRARY = (
    Entry("plumbing", _stdlib("subprocess"), fallback="subprocess"),
    # How a child process begins, whatever it does then.
    Entry("plumbing", _stdlib("multiprocessing"), r"_bootstrap|run|_launch|__init__|spawn_main|_main|worker"),
    Entry(
        "plumbing",
        _stdlib(r"multiprocessing/(?:popen_\w+|process|pool|managers|forkserver|spawn)"),
        fallback="subprocess",
    ),
    Entry(
        "plumbing",
        _stdlib(
            "multiprocessing", "queue", "threading", "_threading_local", "concurrent", "sched", "asyncio"
        ),
        fallback="lock",
    ),
    Entry(
        "plumbing",
        _package(
            r"(?:multiprocess|billiard|loky|joblib/externals/loky)/(?:popen_\w+|process\w*|pool|managers)"
        ),
        fallback="subprocess",
    ),
    Entry("plumbing", _package("multiprocess", "billiard", "loky", "joblib/externals/loky"), fallback="lock"),
    Entry("plumbing", _package("filelock", "portalocker", "fasteners"), fallback="lock"),
    Entry(
        "plumbing",
        _stdlib("socket", "ssl", "selectors", "select", "socketserver", "smtplib"),
        fallback="network",
    ),
    Entry("plumbing", _package("grpc", "gevent", "trio", "anyio", "zmq", "websockets"), fallback="network"),
    Entry("plumbing", _STDLIB),
    Entry("plumbing", r"^<(?:frozen|string|stdin|__array_function__|decorator|attrs)|^$"),
    Entry(
        "plumbing",
        _package("click", "typer", "hydra", "fire", "absl", "lightning_utilities", "decorator", "wrapt"),
    ),
)

# Names that tell, in code that no entry above knows.
_FETCH = (
    r"(?:get|next|load|fetch|read|prepare|build|make|create|init|setup|download|index|shuffle|preprocess|"
    r"stream|iter)"
)
_BATCHES = (
    r"(?:batch(?:es)?|samples?|shards?|examples?|records?|datasets?|data|dataloaders?|corpus|blend\w*|"
    r"minibatch\w*)"
)
_DATA_FILES = (
    r"(?:^|[/_])(?:data_?sets?|data_?load(?:er|ers|ing)?|data_?(?:module|pipe|pipeline|iter|iterator|source|reader)s?|"
    r"data_?(?:feeder|stream|utils|processing|prep)|samplers?|token(?:iz|is)\w+|collat\w+|shards?|tfrecords?|parquet\w*|"
    r"prefetch\w*|loaders?|augment\w*)(?:_\w+)?\.py$"
)
_SAVED = r"(?:checkpoints?|ckpts?|snapshots?|state_dicts?|weights|model_states?)"
_SAVING = r"(?:save|load|write|restore|resume|dump|upload|download|persist|store|flush)"

NAMES = (
    Entry(
        "point_to_point",
        "",
        r"(?:recv|send|receive)_(?:forward|backward|activation|grad|tensor)\w*|p2p_\w+|_communicate",
    ),
    Entry("collective", "", _any(*_CLEARLY_COLLECTIVE)),
    Entry(
        "checkpoint",
        "",
        rf"\w*{_SAVING}_?(?:\w+_)?{_SAVED}\w*|\w*(?:checkpoint|ckpt)_?{_SAVING}\w*|save_(?:model|pretrained)",
    ),
    Entry(
        "checkpoint",
        r"(?:^|[/_])(?:checkpoint(?:s|er|ers|ing)?|ckpt\w*)(?:_\w+)?\.py$",
        r"(?!(?:forward|backward|apply|checkpoint)$)" + _INNER,
    ),
    Entry(
        "data",
        "",
        r"__getitems?__|__next__|__iter__|\w*collate\w*|\w*tokeni[sz]e\w*|augment\w*|\w*prefetch\w*",
    ),
    Entry("data", "", rf"_*{_FETCH}_(?:\w+_)?{_BATCHES}|_?decode_(?:image|video|audio|jpe?g|png|frame)s?\w*"),
    Entry("data", _DATA_FILES, _INNER),
    Entry("data", r"/(?:datasets?|dataloaders?|data_?loading|data_?pipelines?)/[^/]+\.py$", _INNER),
    Entry(
        "storage",
        "",
        r"_?p?(?:read|write)(?:_?(?:bytes|all|lines?|into|file|block|chunk|from|text|at|raw|exact)\w*)?",
    ),
    Entry(
        "storage",
        "",
        r"_?open(?:_(?:file|shard|dataset|stream)\w*)?|listdir|scandir|fsync|mmap(?:_\w+)?|copy_?(?:file|tree)\w*",
    ),
    Entry("sleep", "", r"\w*sleep\w*|\w*backoff\w*|\w*retry\w*"),
    Entry("lock", "", r"(?:\w+_)?(?:acquire|lock|mutex|semaphore|wait|poll|flock)(?:_\w+)?"),
)

TABLE: tuple[Entry, ...] = (
    *IMPORTS,
    *DEBUGGERS,
    *CHECKPOINTS,
    *COMPILERS,
    *TORCH_DISTRIBUTED,
    *DEVICE,
    *FRAMEWORKS,
    *DATA,
    *TRACKING,
    *TEARDOWN,
    *STORAGE,
    *COMPUTE,
    *STANDARD_LIBRARY,
    *NAMES,
)
