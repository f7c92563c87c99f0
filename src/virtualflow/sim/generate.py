"""Random traces: Poisson arrivals of the paper's workloads, with priorities 1, 5 and 10."""

from __future__ import annotations

import random
import re
from dataclasses import asdict, dataclass, replace

from virtualflow.cluster.job import Job
from virtualflow.errors import ConfigError, TraceError
from virtualflow.sim.trace import Trace

PRIORITIES = (1.0, 5.0, 10.0)
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86400.0}
EXAMPLES = {"CoLA": 8_551, "SST-2": 67_349, "QNLI": 104_743, "cifar10": 50_000, "imagenet": 1_281_167}


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the paper's table of workloads, with the node sizes and lengths of its 20-job trace."""

    workload: str
    dataset: str
    node_size: int
    batch_sizes: tuple[int, ...]
    nodes_per_device: tuple[int, ...]
    epochs: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()


MIXES = {
    "paper": (
        Row("resnet56", "cifar10", 64, (64, 128), (1,), epochs=(20,)),
        Row("resnet50", "imagenet", 256, (256, 512, 1024, 2048, 4096, 8192), (1, 2, 4), epochs=(1, 2, 3)),
        Row("bert-base", "CoLA", 8, (8, 16, 32, 64, 128), (1, 2), epochs=(10, 20)),
        Row("bert-base", "SST-2", 8, (8, 16, 32, 64, 128), (1, 2), epochs=(1, 2)),
        Row("transformer", "WMT", 4096, (4096, 8192, 16384, 32768, 65536), (1, 2), steps=(500, 1000)),
    )
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides a random trace."""

    jobs: int
    rate: str
    mix: str = "paper"
    seed: int = 0
    most_devices: int = 8  # the largest demand

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ConfigError(f"--jobs {self.jobs}: a trace needs at least one")
        if self.mix not in MIXES:
            raise ConfigError(f"--mix {self.mix}: expected one of {', '.join(MIXES)}")
        per_second(self.rate)


def per_second(rate: str) -> float:
    """Jobs a second from ``12/h``."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)/(s|min|h|day)", rate.replace(" ", ""))
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"--rate {rate}: expected jobs by time, such as 12/h; the units are s, min, h and day")
    return float(match[1]) / SECONDS[match[2]]


def generate(recipe: Recipe) -> Trace:
    """The same recipe gives the same trace."""
    chance = random.Random(recipe.seed)
    seconds, jobs = 0.0, []
    for number in range(recipe.jobs):
        if number:
            seconds += chance.expovariate(per_second(recipe.rate))
        jobs.append(_job(str(number), seconds, recipe, chance))
    return Trace(tuple(jobs), f"generated, {recipe.rate}, seed {recipe.seed}", asdict(recipe))


def again(trace: Trace, seed: int) -> Trace:
    """Another trace like this one: drawn anew if it was drawn, else its jobs dealt out to the same times of arrival."""
    if seed == 0:
        return trace
    if trace.generated:
        try:
            recipe = Recipe(**trace.generated)
        except TypeError as error:
            raise TraceError(f"{trace.source}: what it was generated from is damaged ({error})") from None
        return generate(replace(recipe, seed=recipe.seed + seed))
    order = list(trace.jobs)
    random.Random(seed).shuffle(order)
    times = [job.arrival_seconds for job in trace.jobs]
    jobs = tuple(replace(job, arrival_seconds=time) for job, time in zip(order, times, strict=True))
    return Trace(jobs, f"{trace.source}, dealt with seed {seed}")


def _job(name: str, seconds: float, recipe: Recipe, chance: random.Random) -> Job:
    row = chance.choice(MIXES[recipe.mix])
    shapes = [
        (batch, devices, nodes)
        for batch in row.batch_sizes
        for nodes in row.nodes_per_device
        if (devices := batch // (row.node_size * nodes)) * row.node_size * nodes == batch
        and 1 <= devices <= recipe.most_devices
    ]
    batch, devices, nodes = chance.choice(shapes)
    if row.steps:
        steps = chance.choice(row.steps)
    else:
        steps = max(1, chance.choice(row.epochs) * EXAMPLES[row.dataset] // batch)
    return Job(
        id=name,
        arrival_seconds=seconds,
        demand=devices,
        steps=steps,
        workload=row.workload,
        node_size=row.node_size,
        virtual_nodes=devices * nodes,
        priority=chance.choice(PRIORITIES),
    )
