# ruff: noqa: E501 - the stacks are data
"""Stacks of imaginary training programs, as py-spy prints them: what a rank may be doing in a hang.

Written outermost first, one `function file:line` a line; `S/` is site-packages, `L/` the standard library, `A/`
the job's own code. `STACKS[name]` is a tuple of frames, outermost first.
"""

from __future__ import annotations

from typing import Any

Frame = dict[str, Any]

PLACES = {
    "S/": "/opt/venv/lib/python3.12/site-packages/",
    "L/": "/usr/local/lib/python3.12/",
    "A/": "/home/ml/proj/",
}

# Prefixes that other stacks build on, by name.
BASES = {
    "train": """
        <module> A/train.py:401
        main A/train.py:388
        Trainer.fit A/engine/trainer.py:212
        Trainer.train_epoch A/engine/trainer.py:260
        Trainer.train_step A/engine/trainer.py:301
    """,
    "forward": """
        @train
        Module._wrapped_call_impl S/torch/nn/modules/module.py:1778
        Module._call_impl S/torch/nn/modules/module.py:1789
        DistributedDataParallel.forward S/torch/nn/parallel/distributed.py:1890
        DistributedDataParallel._run_ddp_forward S/torch/nn/parallel/distributed.py:1715
        Module._wrapped_call_impl S/torch/nn/modules/module.py:1778
        Module._call_impl S/torch/nn/modules/module.py:1789
        Net.forward A/models/net.py:77
    """,
    "backward": """
        @train
        Tensor.backward S/torch/_tensor.py:623
        backward S/torch/autograd/__init__.py:395
        _engine_run_backward S/torch/autograd/graph.py:979
    """,
    "c10d": """
        @train
        _exception_logger.<locals>.wrapper S/torch/distributed/c10d_logger.py:83
    """,
    "next": """
        @train
        _BaseDataLoaderIter.__next__ S/torch/utils/data/dataloader.py:741
        _MultiProcessingDataLoaderIter._next_data S/torch/utils/data/dataloader.py:1516
        _MultiProcessingDataLoaderIter._get_data S/torch/utils/data/dataloader.py:1464
        _MultiProcessingDataLoaderIter._try_get_data S/torch/utils/data/dataloader.py:1291
    """,
    "worker": """
        <module> <string>:1
        spawn_main L/multiprocessing/spawn.py:122
        _main L/multiprocessing/spawn.py:135
        BaseProcess._bootstrap L/multiprocessing/process.py:314
        BaseProcess.run L/multiprocessing/process.py:108
    """,
    "thread": """
        Thread._bootstrap L/threading.py:1032
        Thread._bootstrap_inner L/threading.py:1075
        Thread.run L/threading.py:1012
    """,
    "megatron": """
        <module> /srv/Megatron-LM/pretrain_gpt.py:301
        pretrain /srv/Megatron-LM/megatron/training/training.py:810
        train /srv/Megatron-LM/megatron/training/training.py:2210
        train_step /srv/Megatron-LM/megatron/training/training.py:1300
        forward_backward_pipelining_with_interleaving /srv/Megatron-LM/megatron/core/pipeline_parallel/schedules.py:1200
    """,
}

WAITING = {  # for other ranks
    "all_reduce": "@c10d\nall_reduce S/torch/distributed/distributed_c10d.py:2997",
    "barrier": "@c10d\nbarrier S/torch/distributed/distributed_c10d.py:5356",
    "broadcast": "@c10d\nbroadcast S/torch/distributed/distributed_c10d.py:2871",
    "all_gather": "@c10d\nall_gather_into_tensor S/torch/distributed/distributed_c10d.py:4022",
    "reduce_scatter": "@c10d\nreduce_scatter_tensor S/torch/distributed/distributed_c10d.py:4460",
    "all_to_all": "@c10d\nall_to_all_single S/torch/distributed/distributed_c10d.py:4700",
    "recv": "@c10d\nrecv S/torch/distributed/distributed_c10d.py:2799",
    "object_gather": """
        @c10d
        all_gather_object S/torch/distributed/distributed_c10d.py:3210
        _exception_logger.<locals>.wrapper S/torch/distributed/c10d_logger.py:83
        all_gather S/torch/distributed/distributed_c10d.py:3980
    """,
    "all_reduce_later": """
        <module> A/train.py:401
        main A/train.py:388
        Trainer.fit A/engine/trainer.py:212
        Trainer.train_epoch A/engine/trainer.py:281
        _exception_logger.<locals>.wrapper S/torch/distributed/c10d_logger.py:83
        all_reduce S/torch/distributed/distributed_c10d.py:2997
    """,
    "backward": "@backward",
    "buffers": """
        @train
        Module._wrapped_call_impl S/torch/nn/modules/module.py:1778
        Module._call_impl S/torch/nn/modules/module.py:1789
        DistributedDataParallel.forward S/torch/nn/parallel/distributed.py:1886
        DistributedDataParallel._pre_forward S/torch/nn/parallel/distributed.py:1782
        DistributedDataParallel._sync_buffers S/torch/nn/parallel/distributed.py:2425
        DistributedDataParallel._sync_module_buffers S/torch/nn/parallel/distributed.py:2429
        DistributedDataParallel._distributed_broadcast_coalesced S/torch/nn/parallel/distributed.py:2363
    """,
    "synchronize": "@train\nsynchronize S/torch/cuda/__init__.py:1085",
    "event_synchronize": "@train\nEvent.synchronize S/torch/cuda/streams.py:231",
    "fsdp2": """
        @forward
        FSDPState._pre_forward S/torch/distributed/fsdp/_fully_shard/_fsdp_state.py:240
        FSDPParamGroup.pre_forward S/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py:351
        FSDPParamGroup.wait_for_unshard S/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py:290
    """,
    "fsdp1": """
        @forward
        FullyShardedDataParallel.forward S/torch/distributed/fsdp/fully_sharded_data_parallel.py:854
        _pre_forward S/torch/distributed/fsdp/_runtime_utils.py:382
        _unshard S/torch/distributed/fsdp/_runtime_utils.py:290
        FlatParamHandle.unshard S/torch/distributed/fsdp/_flat_param.py:1328
        FlatParamHandle._all_gather_flat_param S/torch/distributed/fsdp/_flat_param.py:1420
        _exception_logger.<locals>.wrapper S/torch/distributed/c10d_logger.py:83
        all_gather_into_tensor S/torch/distributed/distributed_c10d.py:4022
    """,
    "dtensor": """
        @forward
        DTensor.redistribute S/torch/distributed/tensor/_api.py:560
        Redistribute.forward S/torch/distributed/tensor/_redistribute.py:340
        redistribute_local_tensor S/torch/distributed/tensor/_redistribute.py:210
        wait_tensor S/torch/distributed/_functional_collectives.py:139
    """,
    "zero3": """
        @forward
        PartitionedParameterCoordinator.fetch_sub_module S/deepspeed/runtime/zero/partitioned_param_coordinator.py:310
        AllGatherCoalescedHandle.wait S/deepspeed/runtime/zero/partition_parameters.py:745
    """,
    "pipe_recv": """
        @megatron
        P2PCommunicator.recv_forward /srv/Megatron-LM/megatron/core/pipeline_parallel/p2p_communication.py:410
        P2PCommunicator._communicate /srv/Megatron-LM/megatron/core/pipeline_parallel/p2p_communication.py:330
        Work.wait S/torch/distributed/distributed_c10d.py:2400
    """,
    "pipe_send": """
        @megatron
        P2PCommunicator.send_backward_recv_backward /srv/Megatron-LM/megatron/core/pipeline_parallel/p2p_communication.py:510
        P2PCommunicator._communicate /srv/Megatron-LM/megatron/core/pipeline_parallel/p2p_communication.py:330
        Work.wait S/torch/distributed/distributed_c10d.py:2400
    """,
    "torch_pipe": """
        @train
        Schedule1F1B.step S/torch/distributed/pipelining/schedules.py:620
        Schedule1F1B._step_microbatches S/torch/distributed/pipelining/schedules.py:810
        _wait_batch_p2p S/torch/distributed/pipelining/schedules.py:540
    """,
    "deepspeed_pipe": """
        @train
        PipelineEngine.train_batch S/deepspeed/runtime/pipe/engine.py:388
        PipelineEngine._exec_schedule S/deepspeed/runtime/pipe/engine.py:1422
        PipelineEngine._exec_recv_activations S/deepspeed/runtime/pipe/engine.py:1020
        recv S/deepspeed/runtime/pipe/p2p.py:70
        recv S/torch/distributed/distributed_c10d.py:2799
    """,
    "init": """
        <module> A/train.py:401
        main A/train.py:350
        _exception_logger.<locals>.wrapper S/torch/distributed/c10d_logger.py:83
        init_process_group S/torch/distributed/distributed_c10d.py:1803
        _store_based_barrier S/torch/distributed/distributed_c10d.py:1020
    """,
    "destroy": """
        <module> A/train.py:402
        main A/train.py:395
        destroy_process_group S/torch/distributed/distributed_c10d.py:2270
        _shutdown_backend S/torch/distributed/distributed_c10d.py:1410
    """,
    "horovod": """
        @train
        _DistributedOptimizer.step S/horovod/torch/optimizer.py:380
        _DistributedOptimizer.synchronize S/horovod/torch/optimizer.py:300
        synchronize S/horovod/torch/mpi_ops.py:1310
    """,
    "jax": """
        <module> A/run.py:90
        main A/run.py:71
        sync_global_devices S/jax/experimental/multihost_utils.py:112
        process_allgather S/jax/experimental/multihost_utils.py:160
    """,
    "jax_block": """
        <module> A/run.py:90
        main A/run.py:66
        block_until_ready S/jax/_src/api.py:3020
    """,
    "ray": """
        <module> S/ray/_private/workers/default_worker.py:290
        Worker.main_loop S/ray/_private/worker.py:890
        Learner.update A/rl/learner.py:88
        get S/ray/_private/worker.py:2700
        Worker.get_objects S/ray/_private/worker.py:840
    """,
    "own_push": """
        @train
        Link.push A/fabric/link.py:31
    """,
    "own_pull": """
        @train
        Link.pull A/fabric/link.py:47
    """,
    "own_ring": """
        @train
        RingGroup.exchange A/fabric/ring.py:140
        RingGroup.spin A/fabric/ring.py:61
    """,
}

WORKING = {  # on their own: name -> (cause, stack)
    "read": (
        "data",
        "@train\nnext_batch A/engine/feed.py:20\nShardSet.pull A/engine/feed.py:61\npread A/io/blob.py:12",
    ),
    "getitem": (
        "data",
        "@train\nPackedDataset.__getitem__ A/corpus/packed.py:91\nslice_tokens A/corpus/packed.py:130",
    ),
    "inline_loader": (
        "data",
        """
        @train
        _BaseDataLoaderIter.__next__ S/torch/utils/data/dataloader.py:741
        _SingleProcessDataLoaderIter._next_data S/torch/utils/data/dataloader.py:801
        _MapDatasetFetcher.fetch S/torch/utils/data/_utils/fetch.py:54
        Frames.__getitem__ A/vision/frames.py:33
        Frames._seek A/vision/frames.py:71
    """,
    ),
    "loader": (
        "data",
        "@next\nQueue.get L/multiprocessing/queues.py:113\n_ConnectionBase.poll L/multiprocessing/connection.py:257\n"
        "Connection._poll L/multiprocessing/connection.py:440\nwait L/multiprocessing/connection.py:1136\n"
        "_PollLikeSelector.select L/selectors.py:415",
    ),
    "loader_pinned": ("data", "@next\nQueue.get L/queue.py:180\nCondition.wait L/threading.py:359"),
    "webdataset": (
        "data",
        """
        @train
        DataPipeline.iterator S/webdataset/pipeline.py:68
        group_by_keys S/webdataset/tariterators.py:240
        url_opener S/webdataset/tariterators.py:150
        Pipe.read S/webdataset/gopen.py:80
    """,
    ),
    "streaming": (
        "data",
        """
        @train
        StreamingDataset.__iter__ S/streaming/base/dataset.py:1520
        StreamingDataset.prepare_shard S/streaming/base/dataset.py:1240
        Stream._download_file S/streaming/base/stream.py:390
        sleep_until A/none.py:1
    """,
    ),
    "dali": (
        "data",
        "@train\nDALIGenericIterator.__next__ S/nvidia/dali/plugin/pytorch/__init__.py:230\nPipeline.share_outputs S/nvidia/dali/pipeline.py:1080",
    ),
    "hf_datasets": (
        "data",
        "@train\nDataset.__getitem__ S/datasets/arrow_dataset.py:2770\nquery_table S/datasets/formatting/formatting.py:600",
    ),
    "s3_read": (
        "storage_io",
        """
        @train
        refresh_adapter A/engine/adapters.py:40
        S3File._fetch_range S/s3fs/core.py:2350
        sync S/fsspec/asyn.py:91
        Event.wait L/threading.py:655
        Condition.wait L/threading.py:359
    """,
    ),
    "http_get": (
        "storage_io",
        """
        @train
        fetch_prompt_table A/engine/prompts.py:12
        get S/requests/api.py:73
        HTTPAdapter.send S/requests/adapters.py:667
        HTTPConnectionPool.urlopen S/urllib3/connectionpool.py:789
        HTTPResponse.begin L/http/client.py:331
        SocketIO.readinto L/socket.py:720
    """,
    ),
    "linear": (
        "compute",
        "@forward\nModule._call_impl S/torch/nn/modules/module.py:1789\nLinear.forward S/torch/nn/modules/linear.py:134",
    ),
    "conv": (
        "compute",
        "@forward\nConv2d.forward S/torch/nn/modules/conv.py:554\nConv2d._conv_forward S/torch/nn/modules/conv.py:549",
    ),
    "optimizer": (
        "compute",
        "@train\nOptimizer.profile_hook_step.<locals>.wrapper S/torch/optim/optimizer.py:485\nAdamW.step S/torch/optim/adamw.py:243\n_multi_tensor_adam S/torch/optim/adam.py:720",
    ),
    "flash": (
        "compute",
        "@forward\nflash_attn_func S/flash_attn/flash_attn_interface.py:1180\nFlashAttnFunc.forward S/flash_attn/flash_attn_interface.py:830",
    ),
    "triton_kernel": (
        "compute",
        "@forward\nfused_rope A/models/kernels.py:55\nJITFunction.run S/triton/runtime/jit.py:720",
    ),
    "native_in_module": (
        "compute",
        "@forward\nModule._call_impl S/torch/nn/modules/module.py:1789\nMixer.forward A/models/mixer.py:31",
    ),
    "compiled_call": (
        "compute",
        "@forward\n_TorchDynamoContext.__call__.<locals>._fn S/torch/_dynamo/eval_frame.py:745\nCompiledFxGraph.__call__ S/torch/_inductor/output_code.py:466\ncall /tmp/torchinductor_ml/ab/cab123.py:88",
    ),
    "lock": ("application", "@train\nRouter.claim A/moe/router.py:19\nSlots.acquire A/moe/slots.py:44"),
    "plain_lock": ("application", "@train\nupdate_teacher A/engine/ema.py:51"),
    "event": (
        "application",
        "@train\nwait_for_teacher A/engine/ema.py:77\nEvent.wait L/threading.py:655\nCondition.wait L/threading.py:359",
    ),
    "queue": (
        "application",
        "@train\nReplay.draw A/rl/replay.py:60\nQueue.get L/queue.py:180\nCondition.wait L/threading.py:359",
    ),
    "filelock": (
        "application",
        "@train\nensure_vocab A/text/vocab.py:9\nBaseFileLock.acquire S/filelock/_api.py:330",
    ),
    "sleep": ("application", "@train\nthrottle A/engine/throttle.py:14"),
    "busy": ("application", "@train\nspin_until_ready A/engine/throttle.py:31"),
    "subprocess": (
        "application",
        "@train\nexport_preview A/engine/preview.py:22\nrun L/subprocess.py:550\nPopen.communicate L/subprocess.py:1209\n"
        "Popen.wait L/subprocess.py:1264\nPopen._wait L/subprocess.py:2053\nPopen._try_wait L/subprocess.py:2011",
    ),
    "socket": ("application", "@train\nLicense.check A/engine/license.py:33\nsocket.accept L/socket.py:295"),
    "grpc": (
        "application",
        "@train\nReward.score A/rl/reward.py:25\n_UnaryUnaryMultiCallable.__call__ S/grpc/_channel.py:1178\n_blocking S/grpc/_channel.py:1150",
    ),
    "wandb": (
        "application",
        "@train\nRun.log S/wandb/sdk/wandb_run.py:1920\nMailboxHandle.wait S/wandb/sdk/lib/mailbox.py:280\nEvent.wait L/threading.py:655",
    ),
    "pdb": (
        "application",
        "@train\nBdb.trace_dispatch L/bdb.py:112\nPdb.user_line L/pdb.py:280\nPdb.interaction L/pdb.py:440\nPdb._cmdloop L/pdb.py:335\nCmd.cmdloop L/cmd.py:126",
    ),
    "signal_handler": (
        "application",
        "@c10d\nall_reduce S/torch/distributed/distributed_c10d.py:2997\non_preempt A/engine/signals.py:18",
    ),
    "exit_hooks": ("application", "_shutdown L/threading.py:1624\nThread.join L/threading.py:1149"),
    "finalizer": ("application", "@train\nArena.__del__ A/engine/arena.py:90"),
    "save": (
        "checkpoint",
        """
        <module> A/train.py:401
        main A/train.py:388
        Trainer.fit A/engine/trainer.py:230
        save_checkpoint A/engine/state.py:15
        save S/torch/serialization.py:964
        _save S/torch/serialization.py:1268
    """,
    ),
    "dcp": (
        "checkpoint",
        """
        @train
        save S/torch/distributed/checkpoint/state_dict_saver.py:180
        _save_state_dict S/torch/distributed/checkpoint/state_dict_saver.py:390
        FileSystemWriter.write_data S/torch/distributed/checkpoint/filesystem.py:720
        Future.result L/concurrent/futures/_base.py:451
        Condition.wait L/threading.py:355
    """,
    ),
    "load_own": (
        "checkpoint",
        "<module> A/train.py:401\nmain A/train.py:360\nresume_from_checkpoint A/engine/state.py:60\nunpack A/engine/state.py:88",
    ),
    "safetensors": (
        "checkpoint",
        "<module> A/train.py:401\nmain A/train.py:360\nload_file S/safetensors/torch.py:345",
    ),
    "inductor": (
        "compile",
        """
        @forward
        _TorchDynamoContext.__call__.<locals>._fn S/torch/_dynamo/eval_frame.py:745
        ConvertFrame.__call__ S/torch/_dynamo/convert_frame.py:1400
        compile_fx S/torch/_inductor/compile_fx.py:1750
        AsyncCompile.wait S/torch/_inductor/async_compile.py:420
        Future.result L/concurrent/futures/_base.py:451
        Condition.wait L/threading.py:355
    """,
    ),
    "triton": (
        "compile",
        "@forward\nfused_rope A/models/kernels.py:55\nJITFunction.run S/triton/runtime/jit.py:580\ncompile S/triton/compiler/compiler.py:280\nmake_cubin S/triton/backends/nvidia/compiler.py:430\ncheck_call L/subprocess.py:413\nPopen.wait L/subprocess.py:1264",
    ),
    "extension": (
        "compile",
        "<module> A/train.py:401\nmain A/train.py:340\nload S/torch/utils/cpp_extension.py:1680\n_jit_compile S/torch/utils/cpp_extension.py:2110\nFileBaton.wait S/torch/utils/file_baton.py:43",
    ),
    "index": (
        "data",
        "<module> A/train.py:401\nmain A/train.py:345\nbuild_dataset A/corpus/build.py:30\nsort_documents A/corpus/build.py:55",
    ),
    "helper_in_module": (
        "application",
        "@forward\nModule._call_impl S/torch/nn/modules/module.py:1789\nGate.forward A/moe/gate.py:20\npick A/moe/gate.py:44",
    ),
    "gc": ("application", "@train\nmaybe_gc_collect A/engine/memory.py:8"),
    "own_spin": (
        "application",
        "@train\nRebalancer.plan A/fabric/rebalance.py:210\nRebalancer.search A/fabric/rebalance.py:250",
    ),
    "recursion": ("application", "@train\n" + "\n".join(["Tree.descend A/search/tree.py:17"] * 1000)),
}

HELPERS = {
    "worker_idle": """
        @worker
        _worker_loop S/torch/utils/data/_utils/worker.py:334
        Queue.get L/multiprocessing/queues.py:113
        _ConnectionBase.poll L/multiprocessing/connection.py:257
    """,
    "worker_busy": """
        @worker
        _worker_loop S/torch/utils/data/_utils/worker.py:374
        _MapDatasetFetcher.fetch S/torch/utils/data/_utils/fetch.py:54
        Frames.__getitem__ A/vision/frames.py:33
        Frames.demux A/vision/frames.py:52
    """,
    "worker_busy_later": """
        @worker
        _worker_loop S/torch/utils/data/_utils/worker.py:374
        _MapDatasetFetcher.fetch S/torch/utils/data/_utils/fetch.py:54
        Frames.__getitem__ A/vision/frames.py:33
        Frames.resize A/vision/frames.py:81
    """,
    "pin_memory": "@thread\n_pin_memory_loop S/torch/utils/data/_utils/pin_memory.py:59\nQueue.get L/multiprocessing/queues.py:113",
    "feeder": "@thread\nQueue._feed L/multiprocessing/queues.py:231\nCondition.wait L/threading.py:355",
    "tqdm": "@thread\nTMonitor.run S/tqdm/_monitor.py:60\nEvent.wait L/threading.py:655",
    "tracker": "@thread\nloop_check_status S/wandb/sdk/wandb_run.py:270\nCondition.wait L/threading.py:359",
    "pool": "@thread\n_worker L/concurrent/futures/thread.py:89",
}


def _frame(line: str) -> Frame:
    function, _, place = line.strip().rpartition(" ")
    path, _, number = place.rpartition(":")
    for short, long in PLACES.items():
        if path.startswith(short):
            path = long + path[len(short) :]
    short_filename = "/".join(path.split("/")[-3:])
    return {
        "name": function,
        "filename": path,
        "module": None,
        "short_filename": short_filename,
        "line": int(number),
        "locals": None,
    }


def parse(text: str) -> tuple[Frame, ...]:
    """The frames that these lines describe, outermost first."""
    frames: list[Frame] = []
    for line in text.strip().splitlines():
        base = line.strip()
        frames.extend(parse(BASES[base[1:]]) if base.startswith("@") else (_frame(line),))
    return tuple(frames)


CAUSES = {name: cause for name, (cause, _) in WORKING.items()}
STACKS = {
    **{name: parse(text) for name, text in WAITING.items()},
    **{name: parse(text) for name, (_, text) in WORKING.items()},
    **{name: parse(text) for name, text in HELPERS.items()},
}
