"""Everything that the next step depends on is the job's state: it survives a save and a load, wherever it lives."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import virtualflow as vf
from tests.train.small import make, mlp, mse, regression, train
from virtualflow.errors import CheckpointError, ConfigError, HiddenStateError
from virtualflow.events import StepDone, read_events
from virtualflow.train.settings import Settings
from virtualflow.train.state import Parts

Loop = Callable[[vf.Trainer], None]


def resumed_equals_whole(tmp_path: Path, build: Callable[[], tuple[vf.Trainer, Any]], stop_at: int = 7) -> None:
    """Run a script whole, then up to *stop_at* with a save, then on from there: the ends are equal."""
    ends = []
    for stop, load in ((None, False), (stop_at, False), (None, True)):
        trainer, script = build()
        if load:
            trainer.load(tmp_path / "c.pt")
        for _ in script(trainer):
            for batch in trainer.batches(regression()):
                trainer.step(batch)
                if trainer.global_step == stop:
                    trainer.save(tmp_path / "c.pt")
                    break
            if trainer.global_step == stop:
                break
        ends.append((trainer.digest(), last_step(trainer).chain))
    assert ends[0] == ends[2]
    assert ends[0] != ends[1]


def last_step(trainer: vf.Trainer) -> StepDone:
    assert trainer.events_path is not None
    return [event for event in read_events(trainer.events_path) if isinstance(event, StepDone)][-1]


def epochs(top: Callable[[int], None] = lambda epoch: None) -> Callable[[vf.Trainer], Any]:
    def script(trainer: vf.Trainer) -> Any:
        for epoch in trainer.epochs(3):
            top(epoch)
            yield epoch

    return script


class Keeper16(torch.optim.Optimizer):
    """Steps bfloat16 weights through float32 masters, and counts in an integer."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["master"], state["count"] = p.detach().float(), torch.zeros((), dtype=torch.int64)
                    state["nested"] = {"moments": [torch.zeros_like(p, dtype=torch.float64)]}
                state["count"] += 1
                state["nested"]["moments"][0].mul_(0.9).add_(p.grad)
                state["master"] -= group["lr"] * state["nested"]["moments"][0].float() / state["count"]
                p.copy_(state["master"])


@pytest.mark.parametrize(
    "kind",
    [
        Keeper16,
        lambda p: torch.optim.NAdam(p, lr=0.01),
        lambda p: torch.optim.ASGD(p, lr=0.01),
        lambda p: torch.optim.Adafactor(p, lr=0.01),
    ],
    ids=["masters", "nadam", "asgd", "adafactor"],
)
def test_optimizer_state_keeps_its_dtype_through_a_resume(tmp_path: Path, kind: Any) -> None:
    def build() -> tuple[vf.Trainer, Any]:
        vf.seed(0)
        model = mlp().bfloat16()
        loss = lambda m, b: mse_loss(m(b[0].bfloat16()).float(), b[1])  # noqa: E731
        return make(model, loss, optimizer=kind(model.parameters())), epochs()

    resumed_equals_whole(tmp_path, build)


def test_the_top_of_an_epoch_counts_once(tmp_path: Path) -> None:
    def build() -> tuple[vf.Trainer, Any]:
        vf.seed(0)
        model = mlp()
        model[2].requires_grad_(False)
        optimizer = torch.optim.SGD([model[0].weight, model[0].bias], lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)

        def top(epoch: int) -> None:
            if epoch:
                schedule.step()
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
            if epoch == 1:
                model[2].requires_grad_(True)
                optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.02})
            if epoch == 2:
                optimizer.param_groups[1]["lr"] *= 3

        return make(model, optimizer=optimizer, state=[schedule]), epochs(top)

    for stop_at in (2, 7, 12):
        resumed_equals_whole(tmp_path, build, stop_at)


def test_what_the_loop_draws_does_not_depend_on_what_ran_before(tmp_path: Path) -> None:
    def build() -> tuple[vf.Trainer, Any]:
        vf.seed(0)
        strength = vf.State(value=0.0)
        trainer = make(loss_fn=lambda m, b: mse_loss(m(b[0]) * (1 + strength.value), b[1]))

        def script(trainer: vf.Trainer) -> Any:
            before = trainer.batches

            def drawing(data: Any) -> Any:
                for batch in before(data):
                    strength.value = random.random() + np.random.rand() + float(torch.rand(()))
                    yield batch

            trainer.batches = drawing  # type: ignore[method-assign]
            for epoch in trainer.epochs(3):
                random.random()
                yield epoch

        return trainer, script

    resumed_equals_whole(tmp_path, build)


def test_evaluating_leaves_the_generators_alone() -> None:
    trainer = make()
    vf.seed(3)
    expected = (random.random(), np.random.rand(), float(torch.rand(())))
    vf.seed(3)
    trainer.evaluate(regression(), lambda m, b: (float(torch.rand(()) + random.random() + np.random.rand()), 1))
    trainer.predict(regression())
    assert (random.random(), np.random.rand(), float(torch.rand(()))) == expected


@dataclasses.dataclass
class Progress:
    best: float = math.inf
    seen: list[float] = dataclasses.field(default_factory=list)


def test_plain_variables_in_state_are_set_in_place(tmp_path: Path) -> None:
    def build() -> tuple[vf.Trainer, dict[str, Any]]:
        vf.seed(0)
        mine: dict[str, Any] = {
            "progress": vf.State(best=math.inf, bad=0, weights=torch.zeros(2), array=np.zeros(2), inner={"a": [1]}),
            "dict": {"lr": 0.1},
            "list": [0],
            "data": Progress(),
            "rng": np.random.default_rng(0),
            "random": random.Random(0),
            "torch": torch.Generator().manual_seed(0),
            "number": 3,
        }
        return make(state=list(mine.values())), mine

    trainer, mine = build()
    mine["progress"].best, mine["progress"].bad = 0.5, 2
    mine["progress"].weights += 1
    mine["progress"].array[1] = 7
    mine["progress"].inner["a"].append(2)
    mine["progress"].later = "new"
    mine["dict"] |= {"lr": 0.2, "more": (1, "x")}
    mine["list"].append(5)
    mine["data"].best, mine["data"].seen = 0.25, [1.0]
    drawn = [mine["rng"].random(), mine["random"].random(), float(torch.rand((), generator=mine["torch"]))]
    trainer.save(tmp_path / "c.pt")
    expected = [mine["rng"].random(), mine["random"].random(), float(torch.rand((), generator=mine["torch"]))]
    assert drawn != expected
    other, theirs = build()
    alias = theirs["progress"].inner["a"]
    other.load(tmp_path / "c.pt")
    progress = theirs["progress"]
    assert (progress.best, progress.bad, progress.later, alias) == (0.5, 2, "new", [1, 2])
    assert torch.equal(progress.weights, torch.ones(2))
    assert progress.array.tolist() == [0, 7]
    assert isinstance(progress.array, np.ndarray)
    assert theirs["dict"] == {"lr": 0.2, "more": (1, "x")}
    assert theirs["list"] == [0, 5]
    assert theirs["data"] == Progress(0.25, [1.0])
    assert [
        theirs["rng"].random(),
        theirs["random"].random(),
        float(torch.rand((), generator=theirs["torch"])),
    ] == expected


def test_a_number_in_state_must_be_the_jobs(tmp_path: Path) -> None:
    make(state=[0.5]).save(tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match=r"state\[0\] is 0.7 here and 0.5 in the job"):
        make(state=[0.7]).load(tmp_path / "c.pt")


def test_state_with_nothing_to_save_it_by_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"vf\.State"):
        make(state=[object()])
    with pytest.raises(AttributeError, match="it has: best"):
        _ = vf.State(best=1).bad


def test_attributes_that_the_script_changes_are_kept(tmp_path: Path) -> None:
    vf.seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.1), nn.Linear(4, 1))
    trainer = make(model)
    model[1].p = 0.7
    trainer.save(tmp_path / "c.pt")
    other = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.1), nn.Linear(4, 1))
    make(other).load(tmp_path / "c.pt")
    assert other[1].p == 0.7


def test_an_optimizer_that_hides_tensors_is_refused() -> None:
    class Hiding(torch.optim.SGD):
        def __init__(self, params: Any) -> None:
            super().__init__(params, lr=0.1)
            self.past = [torch.zeros(2)]

    model = mlp()
    with pytest.raises(ConfigError, match="'past'"):
        make(model, optimizer=Hiding(model.parameters()))


class Lazy(nn.Module):
    """Makes a mask on its first call, and a table that grows with its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 1)
        self.register_buffer("table", torch.ones(1), persistent=False)
        self.register_buffer("later", None)

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.rand(6))
        if self.later is None:
            self.later = x.mean(0)
        if len(self.table) < len(x):
            self.table = torch.arange(float(len(x)))
        return self.linear(x * self.mask + self.later) + self.table[: len(x), None]


def lazy_run(order: list[int] | None = None, steps: int | None = None, **options: Any) -> tuple[vf.Trainer, Lazy]:
    vf.seed(0)
    model = Lazy()
    return make(model, virtual_nodes=[1, 3, 2, 2], **options), model


def test_buffers_that_are_born_or_grow_in_forward_are_the_jobs(tmp_path: Path) -> None:
    def build() -> tuple[vf.Trainer, Any]:
        return lazy_run()[0], epochs()

    for stop_at in (1, 7):
        resumed_equals_whole(tmp_path, build, stop_at)
    trainer, model = lazy_run()
    train(trainer, regression())
    assert model.table.tolist() == [0, 1, 2]
    assert "mask" in model.state_dict()
    assert "table" not in model.state_dict()


class Odd(nn.Module):
    """Buffers that no mean can hold: extremes, complex numbers, large integers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 1)
        self.register_buffer("top", torch.full((6,), -math.inf))
        self.register_buffer("low", torch.tensor(math.inf, dtype=torch.bfloat16))
        self.register_buffer("mask", torch.full((3, 3), -math.inf).triu(1))
        self.register_buffer("wave", torch.zeros(2, dtype=torch.complex64))
        self.register_buffer("count", torch.tensor(2**60 + 1))
        self.register_buffer("flag", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        self.top.copy_(torch.maximum(self.top, x.detach().amax(0)))
        self.low.copy_(torch.minimum(self.low, x.detach().amin().bfloat16()))
        self.wave += torch.tensor([1 + 2j, 1j]) * x.detach().mean()
        self.count += 2**40 + 3
        self.flag.fill_(True)
        return self.linear(x)


@pytest.mark.parametrize("virtual_nodes", [1, 4])
def test_extremes_complex_numbers_and_large_integers(virtual_nodes: int) -> None:
    vf.seed(0)
    model = Odd()
    trainer = make(model, virtual_nodes=virtual_nodes)
    data = regression()
    for _ in trainer.epochs(1):
        for batch in trainer.batches(data):
            trainer.step(batch)
    inputs = data.tensors[0]
    assert torch.equal(model.top, inputs.amax(0))
    assert model.low == inputs.amin().bfloat16()
    assert torch.allclose(model.wave, torch.tensor([1 + 2j, 1j]) * inputs.mean() * 5, atol=1e-5)
    assert int(model.count) == 2**60 + 1 + 5 * (2**40 + 3)
    assert bool(model.flag)
    assert torch.isneginf(model.mask).sum() == 3


class Centre(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        shifted: Tensor = x - self.mean
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean())
        return shifted


def test_a_module_in_state_is_held_like_the_models() -> None:
    means = []
    for nodes in ([8], [1, 3, 4]):
        vf.seed(0)
        centre = Centre()
        trainer = make(loss_fn=lambda m, b: centre(m(b[0])).square().mean(), virtual_nodes=nodes, state=[centre])  # noqa: B023
        for _ in trainer.epochs(1):
            for batch in trainer.batches(regression(8)):
                trainer.step(batch)
        means.append(float(centre.mean))
    assert means[0] == pytest.approx(means[1], rel=1e-5)


def test_an_undeclared_module_that_changes_in_forward_is_named() -> None:
    centre = Centre()
    trainer = make(loss_fn=lambda m, b: centre(m(b[0])).square().mean())
    with pytest.raises(HiddenStateError, match=r"'centre' \(Centre\).*state=\[centre\]"):
        train(trainer, regression())


def test_an_undeclared_module_that_the_loop_moves_is_named() -> None:
    vf.seed(0)
    model, target = mlp(), mlp()
    trainer = make(model, lambda m, b: mse_loss(m(b[0]), target(b[0]).detach()))

    def script() -> None:
        for _ in trainer.epochs(1):
            for batch in trainer.batches(regression()):
                trainer.step(batch)
                for mine, theirs in zip(target.parameters(), model.parameters(), strict=True):
                    mine.data.lerp_(theirs.data, 0.1)

    with pytest.raises(HiddenStateError, match=r"'target' \(Sequential\).*changed since the first step"):
        script()


@pytest.mark.parametrize("what", ["tensor", "torch", "numpy", "random"])
def test_undeclared_tensors_and_generators_are_named(what: str) -> None:
    tensor, generator = torch.zeros(1), torch.Generator().manual_seed(0)
    rng, chance = np.random.default_rng(0), random.Random(0)

    def loss_fn(model: nn.Module, batch: list[Tensor]) -> Tensor:
        if what == "tensor":
            tensor.add_(1)
        noise = {
            "tensor": lambda: tensor,
            "torch": lambda: torch.rand(1, generator=generator),
            "numpy": lambda: float(rng.random()),
            "random": lambda: chance.random(),
        }[what]()
        return mse(model, batch) * (1 + noise)

    name = {"tensor": "tensor", "torch": "generator", "numpy": "rng", "random": "chance"}[what]
    trainer = make(loss_fn=loss_fn)
    with pytest.raises(HiddenStateError, match=f"'{name}'"):
        train(trainer, regression())


def test_a_frozen_teacher_needs_no_word() -> None:
    vf.seed(0)
    teacher = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).eval().requires_grad_(False)
    trainer = make(loss_fn=lambda m, b: mse_loss(m(b[0]), teacher(b[0])))
    train(trainer, regression())
    assert trainer.global_step == 5


def test_what_the_script_does_after_a_save_at_the_end_of_an_epoch_belongs_to_it(tmp_path: Path) -> None:
    def script(load: bool) -> str:
        vf.seed(0)
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        progress = vf.State(seen=0)
        trainer = make(model, optimizer=optimizer, state=[schedule, progress])
        if load:
            trainer.load(tmp_path / "1.pt")
        for epoch in trainer.epochs(3):
            for batch in trainer.batches(regression()):
                trainer.step(batch)
            if not load:
                trainer.save(tmp_path / f"{epoch}.pt")
            schedule.step()
            progress.seen += 1
        assert progress.seen == 3
        return trainer.digest()

    assert script(load=False) == script(load=True)


def test_an_optimizer_that_the_loop_steps_by_itself_is_named_unless_declared() -> None:
    def script(*state: Any) -> vf.Trainer:
        vf.seed(0)
        model = mlp()
        trainer = make(model, state=list(state))
        for _ in trainer.epochs(1):
            for batch in trainer.batches(regression()):
                trainer.step(batch)
                other.zero_grad()
                beside(torch.ones(6)).sum().backward()
                other.step()
        return trainer

    beside = mlp()
    other = torch.optim.Adam(beside.parameters())
    with pytest.raises(HiddenStateError, match=r"\(Adam\) that no Trainer knows of"):
        script()
    assert script(beside, other).global_step == 5


def test_training_in_eval_mode_is_told_once() -> None:
    vf.seed(0)
    model = mlp().eval()
    trainer = make(model)
    with pytest.warns(UserWarning, match="eval mode") as told:
        train(trainer, regression())
    assert len(told) == 1


def test_what_is_of_the_lead_is_kept_but_not_compared_between_workers(tmp_path: Path) -> None:
    class Log:
        of_the_lead = True
        seconds = 0.0

        def state_dict(self) -> dict[str, float]:
            return {"seconds": self.seconds}

        def load_state_dict(self, saved: dict[str, float]) -> None:
            self.seconds = saved["seconds"]

    def described(seconds: float, *, of_the_lead: bool) -> list[tuple[str, str]]:
        log = Log()
        log.of_the_lead, log.seconds = of_the_lead, seconds
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return list(Settings(Parts(model), (optimizer,), (log,)).described())

    assert described(1.0, of_the_lead=True) == described(2.0, of_the_lead=True)
    assert described(1.0, of_the_lead=False) != described(2.0, of_the_lead=False)
    one, other = Log(), Log()
    one.seconds = 3.0
    make(state=[one]).save(tmp_path / "saved.pt")
    make(state=[other]).load(tmp_path / "saved.pt")
    assert other.seconds == 3.0
