"""The job of the flip tests: bits of tensors flip on a worker, at a point and a step that are given."""

from __future__ import annotations

import json
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import virtualflow as vf
from virtualflow.core import faults
from virtualflow.core.verdicts import rate_of
from virtualflow.train import solo

options = {
    "epochs": 4,
    "examples": 90,
    "flips": [],  # each a step, a point, a rank and a number for its chances
    "lies": {},  # for devices the point at which they flip a bit every time
    "folder": None,
    "rate": 1,
    "reduction": "exact",
    "few": 0,  # with fewer devices the job is slow, until others have joined, and nothing flips
} | json.loads(sys.argv[1])
member = solo.installed()
claims: list[int] = []  # the flips that were this worker's
passed: Counter[int] = Counter()  # by step, how often what could flip has not


def flip(tensors: Sequence[Tensor], chance: random.Random) -> str:
    """Flip one bit of one of *tensors*; return which."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    place = chance.choices(range(len(tensors)), sizes)[0]
    tensor = tensors[place].detach()
    element, bit = chance.randrange(tensor.numel()), chance.randrange(8 * tensor.element_size())
    index = []
    for size in reversed(tensor.shape):
        index.insert(0, element % size)
        element //= size
    before = tensor[tuple(index)].clone().reshape(1)
    after = before.view(torch.uint8).clone()
    after[bit // 8] ^= 1 << (bit % 8)
    tensor[tuple(index)] = after.view(before.dtype)[0]
    became = float(tensor[tuple(index)])
    return f"tensor {place} {list(tensor.shape)} at {index}, bit {bit}: {float(before)!r} -> {became!r}"


def damage(point: str, tensors: Sequence[Tensor]) -> None:
    tensors = [tensor for tensor in tensors if tensor.numel()]
    if member is None or not tensors:
        return
    if options["lies"].get(member.device) == point:
        flip(tensors, random.Random(trainer.global_step if "trainer" in globals() else 0))
    for number, (step, where, rank, seed) in enumerate(options["flips"]):
        if where == point and is_due(point, step, rank, seed) and claimed(number):
            changed = flip(tensors, random.Random(seed))
            fact = {"point": point, "step": trainer.global_step, "device": member.device, "changed": changed}
            (Path(options["folder"]) / f"flip-{number}").write_text(json.dumps(fact))
            return


def is_due(point: str, step: int, rank: int, seed: int) -> bool:
    """Whether a flip strikes this worker, here and now."""
    if point == "state transfers":
        return not any(claims)
    if trainer.global_step != step or member.devices[rank % len(member.devices)] != member.device:
        return False
    if len(member.devices) < options["few"]:
        return False
    if rate_of(options["rate"]) == 1:
        return True
    # Of what this worker computes for the sums, not of what it computes again to compare.
    if any(frame.f_code.co_name == "_run_again" for frame, _ in traceback.walk_stack(None)):
        return False
    passed[step] += 1
    return passed[step] > seed % (12 if point == "gradients" else 2)


def claimed(number: int) -> bool:
    """Whether this flip has not been before, on any worker."""
    try:
        (Path(options["folder"]) / f"flip-{number}").touch(exist_ok=False)
    except FileExistsError:
        return False
    claims.append(number)
    return True


faults.arm_damage(damage)

vf.seed(1)
generator = torch.Generator().manual_seed(2)
data = torch.utils.data.TensorDataset(
    torch.randn(options["examples"], 1, 6, 6, generator=generator),
    torch.randint(0, 5, (options["examples"],), generator=generator),
)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(64, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def expose(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    if model.training:
        faults.expose("activations", [output.data])


model[2].register_forward_hook(expose)


def loss_fn(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


trainer = vf.Trainer(
    model,
    optimizer,
    loss_fn,
    batch_size=16,
    virtual_nodes=8,
    reduction=options["reduction"],
    loader_workers=0,
    sentinel=options["rate"],
)
for _ in trainer.epochs(options["epochs"]):
    for batch in trainer.batches(data):
        trainer.step(batch)
        if member is not None and len(member.devices) < options["few"]:
            time.sleep(0.3)
digest = trainer.digest()
if trainer.is_lead:
    print(digest)
