"""Users of a cluster, their groups, and what their jobs may ask for: shares go to users first, and then to their jobs.

This stands between the jobs as they were submitted and the policy, which sees smaller demands or other weights, and not
at all the jobs that its owner's share has no room for. How a share is divided depends on how the policy shares out
devices: see `Sharing`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from virtualflow.cluster.job import Job
from virtualflow.cluster.policies.shares import Claim, largest_remainder
from virtualflow.core.wording import counted
from virtualflow.errors import ConfigError


class Sharing(StrEnum):
    """How a policy lets jobs share devices, and so how users share them under it."""

    DEVICES = "devices"  # each job has a part of them, by its priority: a user's part is divided among his jobs
    TIME = "time"  # jobs take turns, by their priorities: a user's weight is divided among his jobs
    TURNS = "turns"  # what starts keeps its devices: a user's part decides which of his jobs may start


@dataclass(frozen=True, slots=True)
class Party:
    """A user or a group. *devices*: at most, for all jobs together."""

    weight: float = 1.0
    devices: int | None = None
    group: str | None = None  # of a user

    def __post_init__(self) -> None:
        if not 1e-3 <= self.weight <= 1e3:
            raise ConfigError(f"a weight is a number from 0.001 to 1000, not {self.weight:g}")
        if self.devices is not None and self.devices < 1:
            raise ConfigError(f"a cap is a number of devices, at least 1, not {self.devices}")

    def most(self, wanted: int) -> int:
        return wanted if self.devices is None else min(wanted, self.devices)


@dataclass(frozen=True, slots=True)
class Asking:
    """A job as it was submitted, and how many devices it has."""

    job: Job
    has: int = 0


@dataclass(frozen=True, slots=True)
class Limit:
    """What a job may ask for, and why: no devices if it has to wait for its owner's other jobs."""

    demand: int
    priority: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Users:
    """Who is not named has a weight of 1, no cap and no group."""

    users: Mapping[str, Party] = field(default_factory=dict)
    groups: Mapping[str, Party] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, user in self.users.items():
            if user.group is not None and user.group not in self.groups:
                raise ConfigError(f"user {name} is in group {user.group}, which is not there: add [group.{user.group}]")

    @property
    def have_weights(self) -> bool:
        return any(party.weight != 1 for party in (*self.users.values(), *self.groups.values()))

    def cap_of(self, user: str) -> int | None:
        """The most devices that all jobs of a user can ever have together."""
        party = self.user(user)
        caps = [party.devices, self.groups[party.group].devices if party.group is not None else None]
        return min((cap for cap in caps if cap is not None), default=None)

    def user(self, name: str) -> Party:
        return self.users.get(name, Party())

    def limits(self, asking: Sequence[Asking], devices: int, sharing: Sharing | None) -> dict[str, Limit]:
        """For the jobs that may not ask for what they were submitted with. Each user's come in the policy's order."""
        owned: dict[str, list[Asking]] = {}
        found: dict[str, Limit] = {}
        for each in asking:
            cap = self.cap_of(each.job.owner)
            if cap is not None and each.job.min > cap:  # it came under another cap
                least = f"and this one needs at least {each.job.min}"
                found[each.job.id] = Limit(0, each.job.priority, f"{self._why(each.job.owner, cap)}, {least}")
            else:
                owned.setdefault(each.job.owner, []).append(each)
        wanted = {user: sum(each.job.demand for each in jobs) for user, jobs in owned.items()}
        arrived = {user: min(each.job.arrival_seconds for each in jobs) for user, jobs in owned.items()}
        is_shared = sharing in (Sharing.DEVICES, Sharing.TURNS) and len(owned) > 1
        parts = self._parts(wanted, arrived, devices if is_shared else sum(wanted.values()))
        weights = self._weights(owned) if sharing == Sharing.TIME and len(owned) > 1 else {}
        for user, jobs in owned.items():
            if parts[user] < wanted[user]:
                divide = _in_turn if sharing in (Sharing.TURNS, None) else _divided
                demands = divide(jobs, parts[user])
            else:
                demands = [each.job.demand for each in jobs]
            part = parts[user]
            why = self._why(user, part)
            for each, demand in zip(jobs, demands, strict=True):
                priority = each.job.priority * weights.get(user, 1.0)
                if (demand, priority) != (each.job.demand, each.job.priority):
                    waits = not demand and bool(part)
                    found[each.job.id] = Limit(
                        demand, priority, why + (", and others of them come first" if waits else "")
                    )
        return found

    def _why(self, user: str, part: int) -> str:
        cap = self.cap_of(user)
        if cap is not None and part >= cap:
            return f"{user}'s jobs may have {counted(cap, 'device')} together"
        return f"the fair share of {user}'s jobs is {counted(part, 'device')} now"

    def _parts(self, wanted: Mapping[str, int], arrived: Mapping[str, float], devices: int) -> dict[str, int]:
        """The devices of each user: first divided among groups and those without a group, then within groups."""
        members: dict[str | None, list[str]] = {}
        for user in wanted:
            members.setdefault(self.user(user).group, []).append(user)
        lone = members.pop(None, [])
        most = {user: self.user(user).most(count) for user, count in wanted.items()}
        claims = [_claim(self.user(user), most[user], arrived[user]) for user in lone]
        for group, users in members.items():
            if group is not None:
                want = self.groups[group].most(sum(most[user] for user in users))
                claims.append(_claim(self.groups[group], want, min(arrived[user] for user in users)))
        shares = largest_remainder(claims, devices)
        parts = dict(zip(lone, shares, strict=False))
        for users, share in zip(members.values(), shares[len(lone) :], strict=True):
            own = [_claim(self.user(user), most[user], arrived[user]) for user in users]
            parts |= zip(users, largest_remainder(own, share), strict=True)
        return parts

    def _weights(self, owned: Mapping[str, Sequence[Asking]]) -> dict[str, float]:
        """What a user's jobs' priorities are multiplied by, so that they add up to the weight of their owner."""
        totals: dict[str, float] = {}
        for user in owned:
            group = self.user(user).group
            totals[group or ""] = totals.get(group or "", 0.0) + self.user(user).weight
        weights = {}
        for user, jobs in owned.items():
            party, weight = self.user(user), self.user(user).weight
            if party.group is not None:
                weight *= self.groups[party.group].weight / totals[party.group]
            weights[user] = weight / math.fsum(each.job.priority for each in jobs)
        return weights


def _claim(party: Party, wanted: int, arrived: float) -> Claim:
    return Claim.of(party.weight, arrived, wanted, 0)


def _divided(jobs: Sequence[Asking], part: int) -> list[int]:
    """By priority. Where there is no room for all, those of lower priority and later arrival get nothing."""
    order = sorted(range(len(jobs)), key=lambda place: (-jobs[place].job.priority, jobs[place].job.arrival_seconds))
    admitted: list[int] = []
    left = part
    for place in order:
        least = jobs[place].job.min
        if least <= left or (not admitted and part):  # the first one may not starve for its minimum
            admitted.append(place)
            left -= least
    claims = [
        Claim.of(job.priority, job.arrival_seconds, job.demand, job.min) for job in (jobs[p].job for p in admitted)
    ]
    demands = [0] * len(jobs)
    for place, demand in zip(admitted, largest_remainder(claims, part), strict=True):
        demands[place] = demand
    return demands


def _in_turn(jobs: Sequence[Asking], part: int) -> list[int]:
    """Jobs that have devices keep them; the others may start one after another, as far as the part goes."""
    demands = [min(each.job.demand, each.has) for each in jobs]
    left = part - sum(demands)
    for has in (True, False):
        for place, each in enumerate(jobs):
            more = min(left, each.job.demand - demands[place])
            if bool(each.has) == has and more > 0 and demands[place] + more >= each.job.min:
                demands[place] += more
                left -= more
    if not any(demands) and part:
        demands[0] = jobs[0].job.min  # the first one may not starve for its minimum
    return demands


def users_of(contents: Mapping[str, Any], where: str) -> Users:
    """What a TOML file says: tables ``[user.NAME]`` and ``[group.NAME]``. *where* names the file."""
    if unknown := set(contents) - {"user", "group"}:
        raise ConfigError(f"{where} has {', '.join(sorted(unknown))}; expected [user.NAME] and [group.NAME]")
    return Users(
        _parties(contents, "user", {"weight", "devices", "group"}, where),
        _parties(contents, "group", {"weight", "devices"}, where),
    )


def _parties(contents: Mapping[str, Any], kind: str, known: set[str], where: str) -> dict[str, Party]:
    tables = contents.get(kind, {})
    if not isinstance(tables, Mapping) or not all(isinstance(table, Mapping) for table in tables.values()):
        raise ConfigError(f"{where}: {kind} is a table of tables: [{kind}.NAME]")
    found = {}
    for name, table in tables.items():
        if unknown := set(table) - known:
            raise ConfigError(
                f"{where}, {kind} {name}: unknown {', '.join(sorted(unknown))}. It has {', '.join(sorted(known))}."
            )
        weight, devices, group = table.get("weight", 1.0), table.get("devices"), table.get("group")
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise ConfigError(f"{where}, {kind} {name}: weight is a number, not {weight!r}")
        if devices is not None and (isinstance(devices, bool) or not isinstance(devices, int)):
            raise ConfigError(f"{where}, {kind} {name}: devices is a whole number, not {devices!r}")
        if group is not None and not isinstance(group, str):
            raise ConfigError(f"{where}, {kind} {name}: group is the name of a group, not {group!r}")
        try:
            found[name] = Party(float(weight), devices, group)
        except ConfigError as error:
            raise ConfigError(f"{where}, {kind} {name}: {error}") from None
    return found
