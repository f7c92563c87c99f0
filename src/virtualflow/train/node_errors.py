"""What to say instead of torch's error when a virtual node fails."""

from __future__ import annotations

from virtualflow.errors import ConfigError, DeviceMemoryError, HiddenStateError, VirtualFlowError
from virtualflow.train.memory_advice import MemoryUse, is_out_of_memory, memory_advice
from virtualflow.train.seeding import determinism_advice

_TWO_DEVICES = "Expected all tensors to be on the same device"


def explained(
    error: BaseException, node: int, examples: int, global_step: int, use: MemoryUse | None
) -> VirtualFlowError | None:
    """An error that says what to do about *error* of a virtual node, if that is known; *use* is of its device."""
    if (advice := _lone_example_advice(node, examples, global_step, error)) is not None:
        return ConfigError(advice)
    if (advice := determinism_advice(node, global_step, error)) is not None:
        return ConfigError(advice)
    if is_out_of_memory(error):
        return DeviceMemoryError(memory_advice(node, examples, global_step, error, use))
    if _TWO_DEVICES in str(error):
        return ConfigError(_two_devices_advice(node, global_step, error))
    if "backward through the graph a second time" in str(error):
        return HiddenStateError(_graph_advice(node, global_step))
    return None


def _two_devices_advice(node: int, global_step: int, error: BaseException) -> str:
    return (
        f"in step {global_step}, virtual node {node} computes with tensors of two devices: "
        f"{str(error).splitlines()[0]} The model and the batch are on the job's accelerator, and so are modules in "
        "state=[...]. Make other tensors where the batch is (device=inputs.device, or .to(inputs.device)), or make "
        "them buffers of the model, which move with it; or train on the CPU: `vf run --device-type cpu`."
    )


def _graph_advice(node: int, global_step: int) -> str:
    return (
        f"in step {global_step}, the loss of virtual node {node} depends on a graph whose backward has run already: on "
        "something that an earlier call of loss_fn has computed and kept (a hidden state, a cached output, a sum of "
        "losses), or on a loss whose backward() loss_fn has called itself. Detach what is kept; virtual nodes run as "
        "if at the same time, so that one can't use what another has left."
    )


def _lone_example_advice(node: int, examples: int, global_step: int, error: BaseException) -> str | None:
    """What to do about batch norm's refusal of a shard without a variance, if *error* is that."""
    if examples != 1 or "more than 1 value per channel" not in str(error):
        return None
    return (
        f"in step {global_step}, virtual node {node} has one example only, and batch norm can't take a variance of "
        "it. If that is what is left over at the end of an epoch: drop_last=True, or another batch_size. If every node "
        "has one example: fewer virtual nodes, or a larger batch."
    )
