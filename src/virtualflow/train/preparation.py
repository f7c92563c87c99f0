"""What must be settled before a Trainer can be put together: its device, its node sizes, its seed."""

from __future__ import annotations

import secrets

import torch
from torch import nn

from virtualflow.core.membership import JobContext, Membership
from virtualflow.errors import ConfigError
from virtualflow.train import checkpoint
from virtualflow.train.peers import Peers
from virtualflow.train.seeding import make_deterministic, pin_threads, seeded
from virtualflow.train.state import tensors_in


def planned_sizes(job: JobContext, batch_size: int) -> tuple[int, ...] | None:
    """The node sizes of the job's plan, if it has one. Raises ConfigError if they are for another batch."""
    if job.node_sizes is not None and sum(job.node_sizes) != batch_size and not job.any_batch:
        raise ConfigError(
            f"the plan is for a batch of {sum(job.node_sizes)}, but the script has batch_size={batch_size}. Make the "
            f"plan again: vf solve --batch-size {batch_size} ..."
        )
    return job.node_sizes


def prepare_device(membership: Membership, model: nn.Module, reduction: str) -> torch.device:
    """Put *model* on this worker's device, and have that compute the same bits every time."""
    if membership.job.device_type == "cuda":
        model.to("cuda")
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    seeding = seeded()
    pin_threads(seeding.threads_per_device if seeding else membership.job.threads_per_device)
    if reduction == "exact":
        make_deterministic(device)
    return device


def proposed_seed(job: JobContext, seed: int | None) -> int:
    """This worker's choice, of which the lead's counts: the script's seed, that of ``vf.seed``, or a random one."""
    seeding = seeded()
    if seed is not None:
        return seed
    if seeding is not None:
        return seeding.seed
    return int(checkpoint.read(job.resume_from)["job"]["seed"]) if job.resume_from else secrets.randbits(32)


def share_initial_model(peers: Peers, model: nn.Module) -> None:
    """Without ``vf.seed`` each worker has drawn another model: all get the lead's."""
    if seeded() is None and not peers.membership.joining:
        tensors = list(tensors_in([dict(model.named_parameters()), dict(model.named_buffers())]))
        peers.share("Trainer", tensors)
