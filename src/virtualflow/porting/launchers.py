"""How a script starts and joins its processes: process groups, DistributedDataParallel, collectives."""

from __future__ import annotations

from collections.abc import Iterator

from virtualflow.porting.advice import Advice, Severity
from virtualflow.porting.call_rules import CallRule, advise_calls
from virtualflow.porting.script import Script

CALLS = (
    CallRule(("init_process_group",), "delete it: `vf run --devices N` starts the workers and joins them."),
    CallRule(("destroy_process_group",), "delete it: a worker ends with its script."),
    CallRule(
        ("mp.spawn", "multiprocessing.spawn", "start_processes", "elastic_launch", "notebook_launcher"),
        "call the function itself: `vf run --devices N` starts one process for each device.",
    ),
    CallRule(("set_device",), "delete it: each worker is given its own device."),
    CallRule(
        ("DistributedDataParallel",),
        "keep `{}` unwrapped: the Trainer sums the gradients of all devices. `.module` goes, too.",
    ),
    CallRule(
        ("nn.DataParallel", "parallel.DataParallel"),
        "keep `{}` unwrapped: the Trainer uses as many devices as `vf run --devices N` gives it.",
    ),
    CallRule(
        ("convert_sync_batchnorm", "SyncBatchNorm"),
        "keep the plain batch norm: it sees one virtual node at a time, on any number of devices. For statistics over "
        "more examples, use fewer virtual nodes.",
    ),
    CallRule(("no_sync",), "delete it: gradients are added up locally over the whole global batch."),
    CallRule(
        ("dist.all_reduce", "distributed.all_reduce", "distributed.reduce", "all_reduce_mean", "reduce_mean"),
        "delete it: `trainer.step(batch)` returns the loss of the global batch, `trainer.evaluate` that of a dataset, "
        "on every worker.",
    ),
    CallRule(
        (
            "distributed.all_gather",
            "all_gather_object",
            "distributed.gather",
            "gather_object",
            "all_gather_into_tensor",
        ),
        "use `trainer.predict(dataset, predict_fn)`: every worker gets all results, in the dataset's order.",
    ),
    CallRule(
        ("distributed.broadcast", "broadcast_object_list"),
        "delete it: every worker runs the same script and gets the same values; a worker that joins is sent the job's "
        "state.",
    ),
    CallRule(("distributed.barrier",), "delete it: calls of the Trainer keep the workers together."),
    CallRule(
        ("fully_shard", "FullyShardedDataParallel"),
        "no counterpart: each device holds the whole model. What does not fit because of the batch fits with more "
        "virtual nodes; a model that is itself too large does not.",
        Severity.CANNOT,
    ),
    CallRule(
        ("parallelize_module", "ScheduleGPipe", "Schedule1F1B", "init_device_mesh", "deepspeed.initialize"),
        "no counterpart: each device holds the whole model.",
        Severity.CANNOT,
    ),
    CallRule(("hvd.init", "horovod.torch.init"), "delete it: `vf run --devices N` starts and joins the workers."),
    CallRule(
        ("hvd.DistributedOptimizer", "horovod.torch.DistributedOptimizer"),
        "keep `{}` unwrapped: the Trainer sums the gradients of all devices.",
    ),
    CallRule(
        ("broadcast_parameters", "broadcast_optimizer_state"),
        "delete it: after `vf.seed` all workers build the same model.",
    ),
)


def calls(script: Script) -> Iterator[Advice]:
    yield from advise_calls(script, CALLS)


RULES = (calls,)
