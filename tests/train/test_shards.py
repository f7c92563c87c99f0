"""The state of an optimizer in blocks, on workers that are threads: how much each holds, and how it moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import virtualflow as vf
from tests.train.several import OneOfSeveral
from tests.train.small import make, mlp, mse, regression, train
from virtualflow.core import blocks, faults
from virtualflow.core.job_description import JobDescription
from virtualflow.core.mapping import Mapping
from virtualflow.core.membership import JobContext
from virtualflow.errors import ConfigError, StateLostError
from virtualflow.system.sealed_files import parts_folder
from virtualflow.testing import ThreadGroup, run_together
from virtualflow.train import checks
from virtualflow.train.buffers import Buffers
from virtualflow.train.peers import Peers
from virtualflow.train.scalars import float_bits
from virtualflow.train.sharded.cut_state import differences
from virtualflow.train.sharded.sharded_reduction import ShardedReduction
from virtualflow.train.sharded.sharded_update import ShardedUpdate
from virtualflow.train.sharded.shards import Shards
from virtualflow.train.state import Parts, named_parameters, tensors_in
from virtualflow.train.step_settings import StepSettings

ROWS = 24  # blocks of the model's one matrix


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 4096)


class Worker:
    """One worker, its model, and its part of the state."""

    def __init__(self, group: ThreadGroup, copies: int = 2, **choices: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4096, ROWS, bias=False)
        self.optimizer = torch.optim.Adam(self.model.parameters(), **choices)
        self.membership = OneOfSeveral(group)
        self.peers = Peers(self.membership)
        self.shards = Shards(self.model, (self.optimizer,), copies, 8, self.peers)

    def step(self) -> None:
        """An update with the gradient that all workers agree on."""
        self.shards.settle()
        gradient = torch.arange(4096.0 * ROWS).remainder(7.0) - 3.0
        self.shards.gradients = {b: gradient[b.start : b.stop] for b in self.shards.held}
        with self.shards.in_place():
            self.optimizer.step()

    def regroup(self, group: ThreadGroup | None, devices: tuple[str, ...]) -> None:
        self.membership.group, self.membership.devices = group, devices  # type: ignore[assignment]
        self.membership.generation += 1

    def collected(self) -> dict[str, Any]:
        return dict(self.shards.collected(["weight"]))["weight"]

    @property
    def state_bytes(self) -> int:
        """Of what is as large as the parameters; a count of steps beside each block is four bytes more."""
        return sum(t.nbytes for t in tensors_in(list(self.shards.held.values())) if t.dim())


def workers_of(size: int, copies: int = 2) -> list[Worker]:
    return [Worker(group, copies) for group in ThreadGroup.of(size)]


def plain_state() -> dict[str, Any]:
    worker = Worker(ThreadGroup.of(1)[0])
    gradient = torch.arange(4096.0 * ROWS).remainder(7.0) - 3.0
    worker.model.weight.grad = gradient.view(ROWS, 4096)
    worker.optimizer.step()
    return dict(worker.optimizer.state[worker.model.weight])


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 6, 8])
def test_each_device_holds_its_part_of_state_and_sums_and_not_a_byte_more(devices: int) -> None:
    elements, copies = 4096 * ROWS, 2
    workers = workers_of(devices, copies)

    def work(worker: Worker) -> tuple[int, int]:
        worker.step()
        parts = Parts(worker.model)
        reduction = ShardedReduction(named_parameters(worker.model), Buffers(parts), 8, worker.shards, worker.peers)
        reduction.grids = {"gradients": {"weight": 0}}
        reduction.begin(worker.peers.group, [1] * devices)
        return worker.state_bytes, reduction.gradient_sums.buffer.nbytes

    for state, sums in run_together(*(lambda w=w: work(w) for w in workers)):
        assert state == 2 * 4 * elements * min(copies, devices) // devices
        assert sums == 8 * elements // (devices if devices > copies else 1)


def test_the_state_of_all_blocks_is_that_of_an_optimizer_that_has_all() -> None:
    workers = workers_of(3)
    first, *others = run_together(*(lambda w=w: (w.step(), w.collected())[1] for w in workers))
    assert not differences(first, plain_state())
    assert others == [{}, {}]
    assert all(not w.optimizer.state and len(w.optimizer.param_groups[0]["params"]) == 1 for w in workers)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_after_a_death_what_is_left_is_whole_and_has_two_holders_again(lost: int) -> None:
    workers = workers_of(4)
    run_together(*(w.step for w in workers))
    left = [w for rank, w in enumerate(workers) if rank != lost]
    devices = tuple(w.membership.device for w in left)
    for worker, group in zip(left, ThreadGroup.of(3), strict=True):
        worker.regroup(group, devices)
    first, *_ = run_together(*(lambda w=w: (w.shards.settle(), w.collected())[1] for w in left))
    assert not differences(first, plain_state())
    assert [len(w.shards.held) for w in left] == [ROWS * 2 // 3] * 3


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_a_norm_whose_squares_leave_the_range_of_float64(devices: int) -> None:
    workers = workers_of(devices)
    gradient = torch.full((ROWS, 4096), 1e-200, dtype=torch.float64)
    gradient[3] = 3e-200

    def work(worker: Worker) -> float:
        worker.model.double()
        worker.shards.follow()
        worker.shards.settle()
        parameters = named_parameters(worker.model)
        reduction = ShardedReduction(parameters, Buffers(Parts(worker.model)), 1, worker.shards, worker.peers)
        reduction.grids = {"gradients": {"weight": -640}}
        reduction.begin(worker.peers.group, [1] + [0] * (devices - 1))
        if worker.membership.device == "0":  # the only one with a virtual node
            reduction.begin_node(last=True)
            reduction.gradient_sums.add(0, gradient)
            reduction.gradient_sums.end_node()
        reduction.gradient_sums.flush()
        return reduction.norm(float(reduction.divide(1.0)))

    norms = run_together(*(lambda w=w: work(w) for w in workers))
    assert norms == [norms[0]] * devices
    assert norms[0] == pytest.approx(1e-200 * (4096 * (ROWS - 1 + 9)) ** 0.5, rel=1e-9)


class TwoPhases:
    """A worker that updates two matrices in turns, each with an optimizer of its own."""

    def __init__(self, group: ThreadGroup) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4096, ROWS, bias=False), nn.Linear(ROWS, 4096, bias=False))
        one, other = self.model.parameters()
        self.optimizers = torch.optim.Adam([one]), torch.optim.SGD([other], lr=0.1, momentum=0.9)
        self.peers = Peers(OneOfSeveral(group))
        self.shards = Shards(self.model, self.optimizers, 2, 6, self.peers)
        self.reductions = []
        for name, parameter in named_parameters(self.model).items():
            buffers = Buffers(Parts(self.model))
            self.reductions.append(ShardedReduction({name: parameter}, buffers, 6, self.shards, self.peers))
            self.reductions[-1].grids = {"gradients": {name: 4}}

    def step(self, phase: int, number: int) -> None:
        """With gradients of six virtual nodes; some devices run several of them, some none."""
        self.shards.settle()
        reduction, group = self.reductions[phase], self.peers.group
        assert group is not None
        (parameter,) = reduction.parameters
        ranks = [0, 0, 0, group.size - 1, group.size - 1, group.size // 2]
        reduction.begin(group, [ranks.count(rank) for rank in range(group.size)])
        for node in [node for node, rank in enumerate(ranks) if rank == group.rank]:
            generator = torch.Generator().manual_seed(10 * number + node)
            reduction.begin_node(last=False)
            reduction.gradient_sums.add(0, torch.randn(parameter.shape, generator=generator))
            reduction.end_node(1)
        reduction.flush()
        norm = reduction.norm(float(reduction.divide(6.0)))
        reduction.finish([float_bits(1.0)], 6)
        settings = StepSettings(mse, 0, 6, 1, clip_grad_norm=1.0)
        ShardedUpdate(self.shards, (self.optimizers[phase],), settings, None, self.peers).make(norm, number)


def test_phases_sum_and_update_what_is_theirs_with_the_same_bits_on_any_devices() -> None:
    def work(worker: TwoPhases) -> list[Tensor]:
        for number in range(4):
            worker.step(number % 2, number)
        return [parameter.detach() for parameter in worker.model.parameters()]

    (alone,) = run_together(lambda: work(TwoPhases(ThreadGroup.of(1)[0])))
    for devices in (2, 5):
        workers = [TwoPhases(group) for group in ThreadGroup.of(devices)]
        for found in run_together(*(lambda w=w: work(w) for w in workers)):
            assert all(torch.equal(a, b) for a, b in zip(alone, found, strict=True))
    untrained = next(TwoPhases(ThreadGroup.of(1)[0]).model.parameters())
    assert not torch.equal(alone[0], untrained), "something was learnt"


def test_state_that_died_with_its_holders_is_named() -> None:
    workers = workers_of(3, copies=1)
    run_together(*(w.step for w in workers))
    for worker, group in zip(workers[:2], ThreadGroup.of(2), strict=True):
        worker.regroup(group, ("0", "1"))

    def settle(worker: Worker) -> str:
        with pytest.raises(StateLostError) as caught:
            worker.shards.settle()
        return str(caught.value)

    assert all("'weight'" in text for text in run_together(*(lambda w=w: settle(w) for w in workers[:2])))


def test_a_fast_type_of_device_holds_more() -> None:
    workers = workers_of(3, copies=1)
    devices = ("V100:0", "P100:0", "P100:1")
    for worker, device in zip(workers, devices, strict=True):
        worker.membership.devices, worker.membership.device = devices, device
        worker.membership.mapping = lambda nodes: Mapping((*["V100:0"] * 4, *["P100:0"] * 2, *["P100:1"] * 2))  # type: ignore[method-assign]
    run_together(*(w.step for w in workers))
    assert [len(w.shards.held) for w in workers] == [ROWS // 2, ROWS // 4, ROWS // 4]
    first, *_ = run_together(*(w.collected for w in workers))
    assert not differences(first, plain_state())


def test_those_who_stay_hold_everything_before_others_leave() -> None:
    workers = workers_of(4)
    run_together(*(w.step for w in workers))
    run_together(*(lambda w=w: w.shards.settle(lambda: ("1", "2")) for w in workers))
    assert [len(w.shards.held) for w in workers] == [0, ROWS, ROWS, 0]


def test_a_worker_that_joins_gets_what_it_is_to_hold() -> None:
    workers = workers_of(2)
    run_together(*(w.step for w in workers))
    groups = ThreadGroup.of(3)
    new = Worker(groups[2])
    new.shards.put([])
    new.membership.generation = 0
    for worker, group in zip([*workers, new], groups, strict=True):
        worker.regroup(group, ("0", "1", "2"))
    first, *_ = run_together(*(lambda w=w: (w.shards.settle(), w.collected())[1] for w in (*workers, new)))
    assert not differences(first, plain_state())
    assert len(new.shards.held) == ROWS * 2 // 3


def test_a_state_that_the_script_brings_in_between_is_refused() -> None:
    trainer = make(mlp(), sharding="state")
    optimizer = trainer._live.optimizers[0]
    train(trainer, regression(), epochs=1)
    optimizer.state[optimizer.param_groups[0]["params"][0]] = {"momentum_buffer": torch.zeros(8, 6)}
    with pytest.raises(ConfigError, match=r"given the optimizer a state for '0\.weight'"):
        trainer._live.shards.follow()


def test_a_parameter_that_is_not_in_the_model_is_refused() -> None:
    worker = Worker(ThreadGroup.of(1)[0])
    worker.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    with pytest.raises(ConfigError, match="not in the model"):
        worker.step()


def test_parameters_and_groups_that_come_later_take_part() -> None:
    digests = set()
    for sharding in ("none", "state"):
        vf.seed(0)
        model = mlp()
        trainer = make(model, optimizer=torch.optim.Adam(model[0].parameters()), sharding=sharding)
        for epoch in trainer.epochs(2):
            if epoch == 1:
                trainer._live.optimizers[0].add_param_group({"params": list(model[2].parameters()), "lr": 0.1})
            for batch in trainer.batches(regression()):
                trainer.step(batch)
        digests.add(trainer.digest())
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"sharding": "all"}, 'expected "none" or "state"'),
        ({"sharding": "state", "copies": 0}, "at least 1"),
        ({"sharding": "state", "reduction": "fast"}, 'reduction="exact"'),
        ({"sharding": "state", "on_gradients": lambda model: None}, "no on_gradients"),
    ],
)
def test_what_can_not_be_is_refused_when_the_trainer_is_made(choices: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make(mlp(), **choices)


def test_two_optimizers_of_one_parameter_are_refused() -> None:
    model = mlp()
    phases = {name: (torch.optim.SGD(model.parameters(), lr=0.1), mse) for name in ("one", "other")}
    with pytest.raises(ConfigError, match="two optimizers hold the same parameter"):
        vf.Trainer(model, phases, batch_size=8, virtual_nodes=2, sharding="state")


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ({"mixed": True}, "devices of one type"),
        ({"description": JobDescription("", audit=True)}, "no --audit"),
    ],
)
def test_jobs_that_can_not_are_refused(tmp_path: Any, job: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        checks.check_sharding("state", 2, "exact", None, JobContext("job", tmp_path, **job))


def test_a_checkpoint_counts_once_it_is_whole(tmp_path: Path) -> None:
    """A death after its parts were written, and before the file that names them, leaves the one that was there."""
    path, other = tmp_path / "c.pt", tmp_path / "other.pt"
    trainer = make(mlp(), sharding="state", optimizer=None)
    train(trainer, regression(), epochs=1)
    trainer.save(path)
    digest = trainer.digest()
    train(trainer, regression(), epochs=1)
    reached = []

    def die(point: str) -> None:
        reached.append(point)
        if reached.count("save") == 2:
            raise KeyboardInterrupt

    faults.arm(die)
    try:
        with pytest.raises(KeyboardInterrupt):
            trainer.save(path)
    finally:
        faults.arm(None)
    assert len(list(parts_folder(path).iterdir())) == 2
    for sharding in ("state", "none"):
        resumed = make(mlp(), sharding=sharding)
        resumed.load(path)
        assert resumed.digest() == digest
    resumed.save(other)  # by a job that is not sharded: without parts
    assert not parts_folder(other).exists()
    trainer.save(path)
    assert len(list(parts_folder(path).iterdir())) == 1, "parts that no checkpoint names are gone"


def test_gradients_without_an_update_are_refused() -> None:
    trainer = make(mlp(), sharding="state")
    with pytest.raises(ConfigError, match=r"trainer\.gradients needs all gradients"):
        trainer.gradients(None)  # type: ignore[arg-type]


def test_a_tensor_whose_memory_format_changes_is_refused() -> None:
    worker = Worker(ThreadGroup.of(1)[0])
    assert len(worker.shards.layout.blocks) == ROWS
    worker.model.weight.data = worker.model.weight.data.t().contiguous().t()
    with pytest.raises(ConfigError, match="'weight' has changed its size, its memory format"):
        worker.shards.follow()


def test_blocks_of_a_tensor_are_its_memory() -> None:
    worker = Worker(ThreadGroup.of(1)[0])
    block = worker.shards.layout.blocks[3]
    part: Tensor = worker.shards.layout.part(block)
    part.fill_(5.0)
    assert bool((worker.model.weight[3] == 5.0).all())
