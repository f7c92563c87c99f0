"""What must be settled before a Trainer can be put together: its device, its node sizes, its seed."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from virtualflow.core.batch_schedule import BatchSchedule
from virtualflow.core.membership import JobContext, Membership
from virtualflow.core.seeds import derive
from virtualflow.core.verdicts import rate_of
from virtualflow.errors import ConfigError
from virtualflow.train import accelerators, checkpoint, optimizer_state
from virtualflow.train.early_results import Recorded
from virtualflow.train.instruments import Instruments
from virtualflow.train.pace import Pace
from virtualflow.train.peers import Peers
from virtualflow.train.seeding import make_deterministic, pin_threads, seeded
from virtualflow.train.state import Parts, tensors_in
from virtualflow.train.step_settings import StepChoices

if TYPE_CHECKING:
    from virtualflow.train.trained import Trained


@dataclass(frozen=True, slots=True)
class Settled:
    """What is settled of a Trainer before it is put together."""

    peers: Peers
    recorded: Recorded
    number: int  # of the Trainer in this process
    schedule: BatchSchedule
    seed: int
    device: torch.device
    pace: Pace
    watched: Fraction = Fraction(0)  # the part of each batch that a sentinel watches

    @property
    def virtual_nodes(self) -> int:
        return len(self.schedule.at(0))


def prepare(
    membership: Membership,
    trained: Trained,
    choices: StepChoices,
    schedule: BatchSchedule,
    seed: int | None,
    instruments: Instruments,
) -> Settled:
    """Settle all of that for a Trainer of *trained*, together with the other workers."""
    device = prepare_device(membership, trained.parts, (*trained.optimizers, *trained.state), choices.reduction)
    peers, recorded = Peers.of(membership), Recorded(membership)
    peers.trainers += 1
    number = peers.trainers
    arguments = derive(0, choices.reduction, choices.on_nan, repr(schedule), repr(seed))
    agreed = agreed_seed(peers, recorded, seed, arguments)
    if trained.staging is None:
        share_initial_model(peers, trained.model)
    watched = watched_part(membership.job, trained, choices, instruments)
    return Settled(peers, recorded, number, schedule, agreed, device, instruments.pace(device), watched)


def watched_part(job: JobContext, trained: Trained, choices: StepChoices, instruments: Instruments) -> Fraction:
    """Which part of each batch a sentinel watches: what the job says counts before what the script does.

    Raises ConfigError if it could not keep its word.
    """
    said = job.description.sentinel
    rate = rate_of(choices.sentinel if said is None else said)
    if not rate or not instruments.keep_files:  # a step is replayed, and compared by whoever asked for that
        return Fraction(0)
    why_not = (
        'with reduction="fast", no two devices have to give the same bits: use "exact"'
        if not choices.is_exact
        else "a model in stages has no device that could run a whole virtual node again"
        if trained.staging is not None
        else 'sharding="state" leaves no device that holds all sums, which it would compare'
        if trained.shard_copies is not None
        else "device types differ, and so do their roundings: use devices of one type"
        if job.mixed
        else "--audit runs every virtual node twice already, to find hidden state: use one of them at a time"
        if job.description.audit
        else ""
    )
    if why_not:
        raise ConfigError(f"a sentinel can't watch this job: {why_not}; or leave out the sentinel.")
    return rate


def batch_schedule(
    job: JobContext, batch_size: int | Mapping[int, int], virtual_nodes: int | Sequence[int], instruments: Instruments
) -> BatchSchedule:
    """The script's batch sizes, with the node sizes of the job's plan if it has one.

    Raises ConfigError if the plan is for another batch.
    """
    planned = job.description.node_sizes
    if planned is None:
        return BatchSchedule.of(batch_size, virtual_nodes)
    if not isinstance(batch_size, int) and not instruments.take_any_batch:
        raise ConfigError(
            f"the plan is for a batch of {sum(planned)}, but the script's batch_size= changes between epochs. "
            "Run it without a plan, or with one batch size."
        )
    if sum(planned) != batch_size and not instruments.take_any_batch:
        raise ConfigError(
            f"the plan is for a batch of {sum(planned)}, but the script has batch_size={batch_size}. Make the "
            f"plan again: vf solve --batch-size {batch_size} ..."
        )
    return BatchSchedule(((0, planned),))


def prepare_device(membership: Membership, parts: Parts, objects: Iterable[Any], reduction: str) -> torch.device:
    """Put the modules of *parts* on this worker's device, and have that compute the same bits every time.

    The optimizers among *objects* follow.
    """
    if membership.job.device_type != "cpu":
        parts.to(membership.job.device_type)
        for optimizer in objects:
            if isinstance(optimizer, torch.optim.Optimizer):
                optimizer_state.follow_parameters(optimizer)
    # A model that is cut has no parameters yet, and will be where the job computes.
    device = parts.device if parts.parameters() else torch.empty(0, device=membership.job.device_type).device
    seeding = seeded()
    pin_threads(seeding.threads_per_device if seeding else membership.job.description.threads_per_device)
    if reduction == "exact":
        accelerators.check_float64(device)
        make_deterministic(device)
    return device


def proposed_seed(job: JobContext, seed: int | None) -> int:
    """This worker's choice, of which the lead's counts: the script's seed, that of ``vf.seed``, or a random one."""
    seeding = seeded()
    if seed is not None:
        return seed
    if seeding is not None:
        return seeding.seed
    return (
        int(checkpoint.read(job.resume_from, mapped=True)["job"]["seed"]) if job.resume_from else secrets.randbits(32)
    )


def agreed_seed(peers: Peers, recorded: Recorded, seed: int | None, arguments: int) -> int:
    """The seed of a Trainer that the script gives *seed*; *arguments* stand for the rest that all must agree on."""
    chosen = proposed_seed(peers.membership.job, seed)
    return int(recorded(lambda: peers.from_lead("Trainer", 0, lambda: chosen, arguments)))


def share_initial_model(peers: Peers, model: nn.Module) -> None:
    """Without ``vf.seed`` each worker has drawn another model: all get the lead's."""
    if seeded() is None and not peers.membership.joining:
        tensors = list(tensors_in([dict(model.named_parameters()), dict(model.named_buffers())]))
        peers.share("Trainer", tensors)
