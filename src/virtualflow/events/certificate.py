"""Are two runs equal, bit by bit? If not, since when, and in what?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from virtualflow.errors import EventStreamError
from virtualflow.events.event_types import EpochEnded, RunStarted, StepDone, StreamEvent

EMPTY_CHAIN = "0" * 16
# Facts that change bits without being anyone's fault: reported first, before the code is blamed.
ENVIRONMENT = (
    "python",
    "torch",
    "numpy",
    "virtualflow",
    "device_type",
    "instruction_set",
    "threads_per_device",
    "mkl_strict",
)
JOB = (
    "reduction",
    "batch_size",
    "virtual_nodes",
    "node_sizes",
    "later_batch_sizes",
    "seed",
    "seeded",
    "initial_digest",
)
SHOWN = 5  # names in a line


def extend_chain(chain: str, *links: str | None) -> str:
    """The chain after one more step: equal chains mean that every step so far was equal."""
    text = "|".join([chain, *(str(link) for link in links)])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a comparison found. ``step`` and ``what`` name the first difference."""

    equal: bool
    summary: str
    steps_compared: int
    step: int | None = None
    what: str | None = None
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a stream says that is comparable."""

    facts: dict[str, Any]
    steps: dict[int, StepDone]
    digests: dict[int, str]

    @classmethod
    def of(cls, events: Iterable[StreamEvent], name: str) -> Certificate:
        facts: dict[str, Any] | None = None
        steps: dict[int, StepDone] = {}
        digests: dict[int, str] = {}
        for event in events:
            if isinstance(event, RunStarted):
                facts = event.facts
            elif isinstance(event, StepDone):
                steps[event.step] = event
            elif isinstance(event, EpochEnded):
                digests[event.step] = event.digest
        if facts is None:
            raise EventStreamError(f"{name} records no run: it ended before a Trainer was made")
        return cls(facts, steps, digests)


def compare(one: Certificate, other: Certificate) -> Verdict:
    """Facts first, then every step that both have, then the digests at the ends of epochs."""
    verdict = _compare(one, other)
    if verdict.equal or (seeds := _hash_seeds(one, other)) is None:
        return verdict
    return replace(verdict, facts=(*verdict.facts, seeds))


def _compare(one: Certificate, other: Certificate) -> Verdict:
    differing = tuple(
        f"{key}: {one.facts.get(key)} and {other.facts.get(key)}"
        for key in (*ENVIRONMENT, *JOB)
        if one.facts.get(key) != other.facts.get(key)
    )
    differing += tuple(_differing_settings(one.facts, other.facts, "optimizer"))
    differing += tuple(_differing_settings(one.facts, other.facts, "accelerator"))
    differing += (*_differing_code(one.facts, other.facts), *_differing_files(one.facts, other.facts))
    if "fast" in (one.facts.get("reduction"), other.facts.get("reduction")):
        summary = "not comparable: a run with reduction='fast' is equal up to rounding only"
        return Verdict(False, summary, 0, facts=differing)
    common = sorted(one.steps.keys() & other.steps.keys())
    if not common:
        return Verdict(False, "not comparable: the runs have no step in common", 0, facts=differing)
    for step in common:
        if what := _difference(one, other, step):
            place = f"step {step} (epoch {one.steps[step].epoch})"
            return Verdict(False, f"different since {place}: {what}", len(common), step, what, differing)
    return _same_as_far_as_both_go(one, other, common, differing)


def compare_all(one: Sequence[Certificate], other: Sequence[Certificate]) -> Verdict:
    """The same for two runs whose scripts made several Trainers, each with a stream of its own, in order."""
    if len(one) != len(other):
        return Verdict(False, f"different: one run made {len(one)} Trainers and the other {len(other)}", 0)
    verdicts = [compare(mine, theirs) for mine, theirs in zip(one, other, strict=True)]
    steps = sum(verdict.steps_compared for verdict in verdicts)
    for number, verdict in enumerate(verdicts, 1):
        if not verdict.equal:
            return replace(verdict, summary=f"Trainer {number}: {verdict.summary}") if len(one) > 1 else verdict
    if len(one) == 1:
        return verdicts[0]
    facts = tuple(dict.fromkeys(fact for verdict in verdicts for fact in verdict.facts))
    summary = f"equal: {len(one)} Trainers, {steps} steps, bit by bit"
    return Verdict(True, f"{summary}, although their facts differ" if facts else summary, steps, facts=facts)


def _differing_settings(one: dict[str, Any], other: dict[str, Any], owner: str) -> Iterator[str]:
    mine, theirs = one.get(owner), other.get(owner)
    if mine is None or theirs is None:  # a run that is older than this fact
        return
    for name in _differing_names(mine, theirs):
        yield f"the {owner}'s {name}: {mine.get(name)} and {theirs.get(name)}"


def _differing_code(one: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    """What a run that is older than this fact does not say is not held against it."""
    codes = one.get("code"), other.get("code")
    if None in codes or codes[0] == codes[1]:
        return
    names = _differing_names(one.get("sources") or {}, other.get("sources") or {})
    where = f", in {', '.join(names[:SHOWN])}{' and others' if names[SHOWN:] else ''}" if names else ""
    versions = [_version(facts) for facts in (one, other)]
    yield f"the code: {' and '.join(versions)}{where}"


def _version(facts: dict[str, Any]) -> str:
    """A run's code, as its digest and the commit of its script."""
    return f"{facts.get('code')} ({f'commit {commit}' if (commit := facts.get('commit')) else 'not in git'})"


def _differing_files(one: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    mine, theirs = one.get("files"), other.get("files")
    if mine is None or theirs is None:
        return
    for name in _differing_names(mine, theirs):
        yield f"the file {name}: {mine.get(name, 'not read')} and {theirs.get(name, 'not read')}"


def _differing_names(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _hash_seeds(one: Certificate, other: Certificate) -> str | None:
    """Sets have another order with another seed. Most scripts do not care, so it is named only if the runs differ."""
    seeds = one.facts.get("hash_seed"), other.facts.get("hash_seed")
    if None in seeds or (seeds[0] == seeds[1] != "random"):
        return None
    return f"PYTHONHASHSEED: {seeds[0]} and {seeds[1]}"


def _same_as_far_as_both_go(
    one: Certificate, other: Certificate, common: list[int], differing: tuple[str, ...]
) -> Verdict:
    ends = max(one.steps), max(other.steps)
    if ends[0] != ends[1]:
        summary = f"equal up to step {common[-1]}, but one run ends with step {ends[0]} and the other with {ends[1]}"
        return Verdict(False, summary, len(common), min(ends) + 1, "length", differing)
    if differing:
        summary = f"equal in all {len(common)} steps, although their facts differ"
        return Verdict(True, summary, len(common), facts=differing)
    return Verdict(True, f"equal: {len(common)} steps, bit by bit", len(common))


def _difference(one: Certificate, other: Certificate, step: int) -> str | None:
    mine, theirs = one.steps[step], other.steps[step]
    for field, meaning in (
        ("ids", "the examples"),
        ("loss_bits", "the loss"),
        ("norm_bits", "the gradient norm"),
        ("accumulator", "the sums of the exact reduction"),
        ("chain", "something before the first step that both have"),
    ):
        values = getattr(mine, field), getattr(theirs, field)
        if values[0] != values[1] and not (field == "accumulator" and None in values):
            shown = map(_decimal, values) if field.endswith("_bits") else values
            return f"{meaning} ({' and '.join(map(str, shown))})"
    digests = one.digests.get(step), other.digests.get(step)
    if None not in digests and digests[0] != digests[1]:
        return f"the digest of the model ({str(digests[0])[:16]} and {str(digests[1])[:16]})"
    return None


def _decimal(bits: str | None) -> str:
    """A number as people read it, with as many digits as distinguish it from its neighbours."""
    return repr(float.fromhex(bits)) if bits is not None else "none"
