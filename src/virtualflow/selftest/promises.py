"""The promises, and a check of each on this machine."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from virtualflow.core.wording import counted
from virtualflow.errors import BrokenPromiseError, NotHereError, VirtualFlowError
from virtualflow.events import StepDone
from virtualflow.events.certificate import compare
from virtualflow.job.coordinator import Coordinator
from virtualflow.selftest.trials import Intervention, Trial, TrialRunner

PASS, FAIL, SKIP = "PASS", "FAIL", "SKIP"
NETWORKS = ("mlp", "convnet", "transformer")
CHANGED = "convnet"  # with buffers and dropout, it has most to lose
ROUNDING = 1e-3  # relative, of the first losses


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is trained and measured."""

    examples: int
    epochs: int
    least_accuracy: float
    rounds: int
    steps: int
    width: int
    node_size: int


FULL = Effort(examples=1024, epochs=4, least_accuracy=0.8, rounds=5, steps=6, width=128, node_size=32)
QUICK = Effort(examples=512, epochs=2, least_accuracy=0.2, rounds=1, steps=2, width=32, node_size=8)


@dataclass(frozen=True, slots=True)
class Check:
    """The result of checking one promise."""

    promise: str
    status: str
    detail: str
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)


Found = tuple[str, dict[str, Any]]  # in words, and in figures


class Checks:
    """All checks, each run when it is asked for: most compare a job with the same one on one device."""

    def __init__(self, trial_runner: TrialRunner, devices: int, effort: Effort) -> None:
        self._trial_runner = trial_runner
        self._devices = devices
        self._effort = effort
        self._nodes = max(8, devices)
        self.facts: dict[str, Any] = {}  # of the first job: versions, device type, settings
        self._reference = cache(lambda network: self._train(network, 1))

    def promises(self) -> Iterator[tuple[str, Callable[[], Check]]]:
        """What is promised, and what checks it."""
        several = self._devices > 1
        for network in NETWORKS:
            yield self._promise(f"{network} learns", partial(self._learns, network))
        yield self._promise("the same job twice: the same bits", self._twice)
        for network in NETWORKS:
            title = f"{network} on {', '.join(map(str, self._counts()))} devices: the same bits"
            yield self._promise(title, partial(self._same_bits, network), possible=several)
        yield self._promise("resized while it trains: the same bits", self._resized, possible=several)
        yield self._promise("a worker killed, then the lead: the same bits", self._killed, possible=several)
        yield self._promise("stopped and resumed: the same bits", self._resumed)
        yield self._promise("reduction='fast': equal up to rounding", self._fast)
        for count in dict.fromkeys((1, self._devices)):
            against = "plain PyTorch" if count == 1 else "DistributedDataParallel"
            title = f"speed against {against} on {counted(count, 'device')}"
            yield self._promise(title, partial(self._race, count))

    def _promise(
        self, promise: str, check: Callable[[], Found], *, possible: bool = True
    ) -> tuple[str, Callable[[], Check]]:
        def checked() -> Check:
            start = time.monotonic()
            try:
                if not possible:
                    raise NotHereError("needs two devices")
                detail, figures = check()
            except NotHereError as error:
                return Check(promise, SKIP, str(error))
            except VirtualFlowError as error:
                return Check(promise, FAIL, str(error), time.monotonic() - start)
            except Exception as error:  # the other promises are checked all the same, and the report is written
                return Check(promise, FAIL, f"{type(error).__name__}: {error}", time.monotonic() - start)
            return Check(promise, PASS, detail, time.monotonic() - start, figures)

        return promise, checked

    def _counts(self) -> list[int]:
        """1, 2, 4, ... and all devices."""
        powers = [1 << power for power in range(self._devices.bit_length()) if 1 << power < self._devices]
        return [*powers, self._devices]

    def _learns(self, network: str) -> Found:
        accuracy = self._reference(network).result["accuracy"]
        if accuracy < self._effort.least_accuracy:
            raise BrokenPromiseError(f"only {accuracy:.0%} right, of which {self._effort.least_accuracy:.0%} are usual")
        return f"{accuracy:.0%} right", {"accuracy": accuracy}

    def _twice(self) -> Found:
        return self._compared(self._train(CHANGED, 1), CHANGED)

    def _same_bits(self, network: str) -> Found:
        for count in self._counts()[1:]:
            comparison = self._compared(self._train(network, count), network)
        return comparison

    def _resized(self) -> Found:
        ways = [(2, _to(self._devices)), (5, _to(1)), (8, _to(self._devices))]
        trial = self._train(CHANGED, 1, interventions=ways)
        return self._compared(trial, CHANGED, pauses_ms=trial.pauses_ms("resize"))

    def _killed(self) -> Found:
        ways = [(3, _kill(-1)), (3, _has_lost(1)), (5, _to(self._devices)), (7, _kill(0)), (7, _has_lost(2))]
        trial = self._train(CHANGED, self._devices, interventions=ways)
        return self._compared(trial, CHANGED, recoveries_ms=trial.pauses_ms("loss"))

    def _resumed(self) -> Found:
        stopped = self._train(CHANGED, self._devices, interventions=[(5, _stop)])
        return self._compared(self._trial_runner.go_on(stopped, 1), CHANGED)

    def _fast(self) -> Found:
        pairs = zip(
            _losses(self._reference(CHANGED)), _losses(self._train(CHANGED, self._devices, "fast")), strict=False
        )
        worst = max(abs(one - other) / abs(one) for one, other in list(pairs)[:4])
        if worst > ROUNDING:
            raise BrokenPromiseError(f"the first losses differ by up to {worst:.1e} of their value")
        return f"the first losses differ by at most {worst:.0e} of their value", {"difference": worst}

    def _race(self, devices: int) -> Found:
        figures: dict[str, Any] = {}
        for network in ("convnet", "transformer"):
            effort = self._effort
            arguments = [network, "--width", str(effort.width), "--node-size", str(effort.node_size)]
            arguments += ["--rounds", str(effort.rounds), "--steps", str(effort.steps), "--store", "{place}/store"]
            seconds = self._trial_runner.run("race_digits", arguments, devices).result
            if lacking := seconds.get("lacking"):
                raise NotHereError(f"this torch has no {lacking}, which DistributedDataParallel needs")
            ratios = {side: _ratio(seconds[side], seconds["plain"]) for side in ("exact", "fast")}
            figures[network] = {"step_seconds": seconds, "ratios": ratios}
        ratios_shown = [
            f"{network}: exact x {measured['ratios']['exact']:.2f}, fast x {measured['ratios']['fast']:.2f}"
            for network, measured in figures.items()
        ]
        return f"{'; '.join(ratios_shown)} of its time", figures

    def _compared(self, trial: Trial, network: str, **figures: list[float]) -> Found:
        reference = self._reference(network)
        verdict = compare(reference.certificate, trial.certificate)
        digests = reference.result["digest"], trial.result["digest"]
        if not verdict.equal or verdict.facts or digests[0] != digests[1]:
            differences = [verdict.summary, *verdict.facts, f"digests {digests[0][:16]} and {digests[1][:16]}"]
            raise BrokenPromiseError("; ".join(differences))
        pauses = [
            f"{name.removesuffix('_ms')} {', '.join(f'{milliseconds:.0f}' for milliseconds in ms)} ms"
            for name, ms in figures.items()
        ]
        detail = "; ".join([f"{verdict.steps_compared} steps, digest {digests[0][:12]}", *pauses])
        return detail, {"digest": digests[0], "steps": verdict.steps_compared, **figures}

    def _train(
        self,
        network: str,
        devices: int,
        reduction: str = "exact",
        interventions: list[tuple[int, Intervention]] | None = None,
    ) -> Trial:
        effort = self._effort
        arguments = [network, "--virtual-nodes", str(self._nodes), "--reduction", reduction, "--hold", "{place}/hold"]
        arguments += ["--epochs", str(effort.epochs), "--examples", str(effort.examples)]
        trial = self._trial_runner.run("train_digits", arguments, devices, interventions or [])
        self.facts = self.facts or trial.certificate.facts
        return trial


def _to(devices: int) -> Intervention:
    def resize(coordinator: Coordinator) -> bool:
        coordinator.resize(devices)
        return True

    return resize


def _kill(place: int) -> Intervention:
    """Kill one of the job's workers: the first is the lead."""

    def kill(coordinator: Coordinator) -> bool:
        victim = coordinator.roster.generation.devices[place]
        (process,) = [worker.pid for worker in coordinator.status().workers if worker.device == victim]
        os.kill(process, signal.SIGKILL)
        return True

    return kill


def _has_lost(count: int) -> Intervention:
    return lambda coordinator: coordinator.roster.failures >= count


def _stop(coordinator: Coordinator) -> bool:
    coordinator.stop(checkpoint=True)
    return True


def _losses(trial: Trial) -> list[float]:
    return [event.loss for event in trial.events if isinstance(event, StepDone)]


def _ratio(seconds: list[float], plain: list[float]) -> float:
    """How much longer a step takes: the median over rounds, each compared with the plain steps beside it."""
    return statistics.median(mine / theirs for mine, theirs in zip(seconds, plain, strict=True))
