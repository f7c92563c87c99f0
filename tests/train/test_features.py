"""What scripts out there do: every kind of parameter, optimizer, batch and model that the Trainer takes."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import virtualflow as vf
from tests.train.small import accuracy, classes, cross, make, mlp, mse, regression, train
from virtualflow.errors import ConfigError

pytestmark = pytest.mark.on_cuda_too

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {}, "AdamW": {"amsgrad": True}, "RMSprop": {}, "Adagrad": {},
    "Adadelta": {}, "Adamax": {}, "NAdam": {}, "RAdam": {}, "ASGD": {}, "Rprop": {}, "Adafactor": {},
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_first_order_optimizers_train_and_repeat(name: str) -> None:
    digests = set()
    for _ in range(2):
        vf.seed(0)
        model = mlp()
        optimizer = getattr(torch.optim, name)(model.parameters(), **OPTIMIZERS[name])
        trainer = make(model, optimizer=optimizer)
        losses = train(trainer, regression(), epochs=2)
        assert all(math.isfinite(loss) for loss in losses)
        digests.add(trainer.digest())
    assert len(digests) == 1


def test_lbfgs_is_refused_with_the_reason() -> None:
    model = mlp()
    with pytest.raises(ConfigError, match="several times within one step"):
        make(model, optimizer=torch.optim.LBFGS(model.parameters()))


class Odd(nn.Module):
    """A frozen, an unused and a tied parameter, and outputs in a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(3))
        self.sometimes = nn.Linear(6, 6)
        self.head = nn.Linear(6, 1)

    def forward(self, inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = self.second(self.first(inputs).tanh()).tanh() + self.frozen(inputs)
        if float(inputs[0, 0]) > 0:
            hidden = hidden + self.sometimes(hidden)
        return self.head(hidden), {"hidden": hidden}


@pytest.mark.parametrize("reduction", ["exact", "fast"])
def test_frozen_unused_and_tied_parameters(reduction: str) -> None:
    vf.seed(0)
    model = Odd()
    frozen = model.frozen.weight.clone()
    trainer = make(model, lambda m, b: mse_loss(m(b[0])[0], b[1]), reduction=reduction)
    train(trainer, regression())
    assert torch.equal(model.frozen.weight.cpu(), frozen)
    # Without a gradient there is no weight decay either.
    assert torch.equal(model.unused.data.cpu(), torch.ones(3))
    assert model.unused.grad is None
    assert model.first.weight is model.second.weight


def test_a_layer_can_be_unfrozen_on_the_way() -> None:
    vf.seed(0)
    model = mlp()
    model[0].requires_grad_(False)
    trainer = make(model)
    before = model[0].weight.clone()
    for epoch in trainer.epochs(2):
        if epoch == 1:
            assert torch.equal(model[0].weight, before)
            model[0].requires_grad_(True)
        for batch in trainer.batches(regression()):
            trainer.step(batch)
    assert not torch.equal(model[0].weight, before)


def test_sparse_gradients_are_refused_with_the_reason() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    with pytest.raises(ConfigError, match="sparse=False"):
        make(model)


Point = namedtuple("Point", "x y")


def collate(examples: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    inputs, targets = zip(*examples, strict=True)
    return {"point": Point(torch.stack(inputs), torch.stack(targets)), "names": ["a"] * len(inputs)}


@pytest.mark.parametrize("loader_workers", [0, 2])
def test_any_collate_fn_and_any_nesting(loader_workers: int) -> None:
    trainer = make(
        loss_fn=lambda m, b: mse_loss(m(b["point"].x), b["point"].y), collate_fn=collate, loader_workers=loader_workers
    )
    plain = make()
    assert train(trainer, regression()) == train(plain, regression())


def test_a_sampler_decides_the_order_and_the_number_of_examples() -> None:
    trainer = make(sampler=lambda epoch: [0, 1, 2, 3] * 4)
    assert len(train(trainer, regression(), epochs=3)) == 6


def test_bf16_autocast_and_bf16_parameters() -> None:
    def loss_fn(model: nn.Module, batch: list[Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return mse_loss(model(batch[0]).float(), batch[1])

    losses = train(make(loss_fn=loss_fn), regression(), epochs=4)
    assert losses[-1] < losses[0]
    vf.seed(0)
    model = mlp().bfloat16()
    losses = train(make(model, lambda m, b: mse_loss(m(b[0].bfloat16()).float(), b[1])), regression(), epochs=4)
    assert losses[-1] < losses[0]


def test_a_grad_scaler_skips_overflows_globally_and_the_step_counts() -> None:
    vf.seed(0)
    model = mlp()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = make(model, optimizer=optimizer, grad_scaler=scaler, clip_grad_norm=1.0)
    before = [p.clone() for p in model.parameters()]
    epochs = trainer.epochs(40)
    next(epochs)
    batches = trainer.batches(regression())
    trainer.step(next(batches))
    assert trainer.global_step == 1
    assert scaler.get_scale() < 2.0**127
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    for batch in batches:
        trainer.step(batch)
    for _ in epochs:
        for batch in trainer.batches(regression()):
            trainer.step(batch)
    assert not torch.equal(before[0], next(model.parameters()))


def test_a_scaled_run_learns_what_an_unscaled_one_does() -> None:
    scaled = make(grad_scaler=torch.amp.GradScaler("cpu", init_scale=1024.0), clip_grad_norm=0.5)
    plain = make(clip_grad_norm=0.5)
    assert train(scaled, regression()) == pytest.approx(train(plain, regression()), rel=1e-5)


@pytest.mark.parametrize("reduction", ["exact", "fast"])
def test_clipping_agrees_with_torch(reduction: str) -> None:
    vf.seed(0)
    model = mlp()
    trainer = make(
        model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0), clip_grad_norm=1e-3, reduction=reduction
    )
    train(trainer, regression(), steps=1)
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    assert float(norm) == pytest.approx(1e-3, rel=1e-3)


def is_static(inputs: list[Any]) -> bool:
    return not any(isinstance(size, torch.SymInt) for item in inputs for size in getattr(item, "shape", [item]))


def in_the_loss(options: dict[str, Any]) -> Any:
    compiled = torch.compile(mse_loss, **options)
    return lambda model, batch: compiled(model(batch[0]), batch[1])


def in_place(model: nn.Module, options: dict[str, Any]) -> nn.Module:
    class Own(nn.Module):  # torch does not compile its own classes in place
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, inputs: Tensor) -> Tensor:
            return self.inner(inputs)  # type: ignore[no-any-return]

    own = Own()
    own.compile(**options)
    return own


COMPILED: dict[str, Any] = {
    "wrapped": lambda model, options: (torch.compile(model, **options), mse),
    "in place": lambda model, options: (in_place(model, options), mse),
    "loss": lambda model, options: (model, torch.compile(mse, **options)),
    "in the loss": lambda model, options: (model, in_the_loss(options)),
    "part": lambda model, options: (nn.Sequential(torch.compile(model[0], **options), *model[1:]), mse),
}


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(automatic_dynamic_shapes=True):
        yield
    torch._dynamo.reset()


@pytest.mark.host_only
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own
@pytest.mark.parametrize("where", COMPILED)
@pytest.mark.parametrize("dynamic", [None, False])
def test_whatever_is_compiled_is_static_in_exact_mode(where: str, dynamic: bool | None, fresh_dynamo: None) -> None:
    static = []

    def backend(graph: Any, inputs: list[Any]) -> Any:
        static.append(is_static(inputs))
        return graph

    vf.seed(0)
    model, loss_fn = COMPILED[where](mlp(), {"backend": backend, "dynamic": dynamic})
    for size in (2, 3, 4):  # a script may have run it before
        loss_fn(model, list(regression(size).tensors)).backward()
    static.clear()
    trainer = make(model, loss_fn, virtual_nodes=[3, 5])
    assert train(trainer, regression(24)) == train(make(virtual_nodes=[3, 5]), regression(24))
    assert static
    assert all(static)


@pytest.mark.host_only
@pytest.mark.parametrize("where", COMPILED)
def test_dynamic_shapes_are_refused_in_exact_mode(where: str, fresh_dynamo: None) -> None:
    model, loss_fn = COMPILED[where](mlp(), {"backend": "eager", "dynamic": True})
    with pytest.raises(ConfigError, match="dynamic=False"):
        make(model, loss_fn)
    make(model, loss_fn, reduction="fast")


def test_threads_that_change_after_the_seed_are_refused() -> None:
    trainer = make()
    fast = make(reduction="fast")
    torch.set_num_threads(2)
    with pytest.raises(ConfigError, match="2 threads, but this job has 1"):
        train(trainer, regression())
    train(fast, regression())


THREADS = """
import os, sys, torch
from torch import nn
import virtualflow as vf
vf.seed(0, threads_per_device=2)
model = nn.Embedding(50, 1)
generator = torch.Generator().manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randint(0, 50, (8, 40000), generator=generator))
scales = 10 ** torch.randint(-4, 5, (4, 40000), generator=generator).float()
loss = lambda model, batch: (model.weight[:, 0][batch[0]] * scales).mean()
digests = set()
for _ in range(4):
    vf.seed(0, threads_per_device=2)
    model = nn.Embedding(50, 1)
    trainer = vf.Trainer(model, torch.optim.SGD(model.parameters(), lr=1.0), loss, batch_size=8, virtual_nodes=2)
    trainer.fit(data, 3)
    digests.add(trainer.digest())
print(len(digests))
"""


@pytest.mark.host_only
def test_two_threads_give_the_same_bits_twice(tmp_path: Path) -> None:
    """Gradients of x[index] are summed by several threads: by turns, unless told otherwise."""
    ended = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=100, check=False)
    assert ended.stdout == "1\n", ended.stderr


@pytest.mark.host_only
@pytest.mark.parametrize("late", [False, True])
def test_the_certificate_tells_whether_mkl_was_told_in_time(late: bool) -> None:
    product = "import torch; torch.randn(64, 64) @ torch.randn(64, 64); "
    script = (product if late else "") + "import virtualflow; " + product
    script += "from virtualflow.train.run_facts import environment as e; print(e(torch.device('cpu'))['mkl_strict'])"
    environment = {key: value for key, value in os.environ.items() if key != "MKL_CBWR"}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() in (str(not late), "None")


def test_fit_is_the_loop_for_people_who_want_none() -> None:
    vf.seed(0)
    model = mlp(out=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    trainer = make(model, cross, optimizer=optimizer, state=[schedule])
    seen: list[int] = []
    reports = trainer.fit(
        classes(), 3, schedule=schedule, test_set=classes(), metric_fn=accuracy, on_epoch=lambda r: seen.append(r.epoch)
    )
    assert seen == [0, 1, 2]
    assert reports[-1].loss < reports[0].loss
    assert reports[-1].metric is not None
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 / 8)


def test_noise_in_the_optimizer_and_in_the_users_loop_is_seeded() -> None:
    class Noisy(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step()
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data += 0.01 * torch.randn_like(parameter)

    results = set()
    for noise in (1, 2):
        vf.seed(0)
        model = mlp()
        trainer = make(model, optimizer=Noisy(model.parameters(), lr=0.1))
        torch.randn(noise)  # what came before must not matter
        drawn = []
        for _ in trainer.epochs(1):
            for batch in trainer.batches(regression()):
                trainer.step(batch)
                drawn.append(float(torch.rand(())))
        results.add((trainer.digest(), tuple(drawn)))
    assert len(results) == 1


def test_a_buffer_that_is_replaced_is_followed() -> None:
    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 1)
            self.register_buffer("mean", torch.zeros(()))
            self.register_buffer("mask", torch.full((3,), -math.inf))

        def forward(self, inputs: Tensor) -> Tensor:
            self.mean = 0.5 * self.mean + 0.5 * inputs.mean().detach()
            return self.linear(inputs)

    vf.seed(0)
    model = Running()
    data = regression(8)
    train(make(model), data)
    assert float(model.mean) == pytest.approx(0.5 * float(data.tensors[0].mean()), rel=1e-5)
    assert torch.equal(model.mask.cpu(), torch.full((3,), -math.inf))


def test_user_code_between_steps_may_run_a_backward_of_its_own() -> None:
    trainer = make()
    for _ in trainer.epochs(1):
        for batch in trainer.batches(regression()):
            trainer.step(batch)
            mse(mlp(), list(regression(2).tensors)).backward()
    assert trainer.global_step == 5


def test_without_a_seed_the_certificate_says_so() -> None:
    model = mlp()
    trainer = vf.Trainer(model, torch.optim.SGD(model.parameters()), mse, batch_size=4, virtual_nodes=2)
    assert trainer.events_path is not None
    assert '"seeded": false' in trainer.events_path.read_text()
