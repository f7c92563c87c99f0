"""A model of ``models`` as plain PyTorch trains it on a CUDA device, an example at a time. Prints its peak memory."""

from __future__ import annotations

import json
import sys

import torch
from torch import nn

from tests.fakecuda import install
from tests.stages.models import MODELS, examples
from virtualflow.train.stages.job_optimizer import NamedParameters


def main() -> None:
    name, capacity = json.loads(sys.argv[1])
    if capacity:
        install.set_capacity(0, capacity)
    arguments = MODELS[name]()
    model = nn.ModuleList(build() for build in arguments["stages"]).to("cuda")
    for tied, home in (arguments.get("tied") or getattr(arguments["stages"], "tied", {})).items():
        module, _, key = tied.rpartition(".")
        setattr(model.get_submodule(module), key, model.get_parameter(home))
    optimizer = arguments["optimizer"](NamedParameters(dict(model.named_parameters())))
    data = examples(name, 4)
    for _ in range(2):
        for example in data:
            batch = [part[None].to("cuda") for part in example]
            x = None
            for place, stage in enumerate(model):
                x = stage(x, batch) if takes_batch(name, place) else stage(batch[0] if place == 0 else x)
            loss = arguments["loss_fn"](x, batch)
            (loss[0] if isinstance(loss, tuple) else loss).div(len(data)).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(torch.cuda.max_memory_allocated())


def takes_batch(name: str, place: int) -> bool:
    return "llama" in name or ("gpt" in name and place == 0)


if __name__ == "__main__":
    main()
