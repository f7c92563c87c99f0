"""Policies by name: ours, and those that other packages plug in."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points

from virtualflow.cluster.policies.base import Options, Policy
from virtualflow.errors import ConfigError

GROUP = "virtualflow.policies"
BUILT_IN = {  # name -> module and class; imported when asked for, since some need scipy
    "wfs": "virtualflow.cluster.policies.wfs:Wfs",
    "sjf": "virtualflow.cluster.policies.wfs:Sjf",
    "srtf": "virtualflow.cluster.policies.wfs:Srtf",
    "priority": "virtualflow.cluster.policies.priority:Priority",
    "fifo": "virtualflow.cluster.policies.fifo:Fifo",
    "las": "virtualflow.cluster.policies.las:Las",
    "las-agnostic": "virtualflow.cluster.policies.las:LasAgnostic",
    "las-mixed": "virtualflow.cluster.policies.las_mixed:LasMixed",
    "las-mixed-columns": "virtualflow.cluster.policies.las_mixed:LasMixedColumns",
    "water-filling": "virtualflow.cluster.policies.las:WaterFilling",
    "ftf": "virtualflow.cluster.policies.finish:FinishTimeFairness",
    "tiresias": "virtualflow.cluster.policies.tiresias:Tiresias",
    "makespan": "virtualflow.cluster.policies.finish:Makespan",
    "optimus": "virtualflow.cluster.policies.optimus:Optimus",
    "themis": "virtualflow.cluster.policies.themis:Themis",
    "gandiva": "virtualflow.cluster.policies.gandiva:Gandiva",
    "antman": "virtualflow.cluster.policies.antman:Antman",
    "pollux": "virtualflow.cluster.policies.pollux:Pollux",
    "sia": "virtualflow.cluster.policies.sia:Sia",
    "easyscale": "virtualflow.cluster.policies.easyscale:EasyScale",
}


def names() -> list[str]:
    return [*BUILT_IN, *sorted(entry.name for entry in entry_points(group=GROUP) if entry.name not in BUILT_IN)]


def make(name: str, options: Options = Options()) -> Policy:  # noqa: B008, frozen
    """A fresh policy of that name."""
    return _factory(name)(options)


def make_live(name: str, options: Options = Options()) -> Policy:  # noqa: B008, frozen
    """As `make`, for jobs that really run: what those can't do is refused, with what to use."""
    policy = make(name, options)
    if policy.live_refusal is not None:
        raise ConfigError(f"--policy {name} is for simulations (vf simulate): {policy.live_refusal}.")
    return policy


def _factory(name: str) -> Callable[[Options], Policy]:
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        factory: Callable[[Options], Policy] = getattr(import_module(module), attribute)
        return factory
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            loaded: Callable[[Options], Policy] = entry.load()
            return loaded
    raise ConfigError(f"there is no policy {name!r}. There are {', '.join(names())}.")
