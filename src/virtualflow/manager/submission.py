"""A job as it is handed in to a manager, and what a manager does not take."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from virtualflow.core.emulation import Emulated
from virtualflow.core.job_description import JobDescription
from virtualflow.core.job_names import check_name
from virtualflow.core.job_terms import JobTerms
from virtualflow.core.wording import counted
from virtualflow.errors import ManagerError, ProfileError
from virtualflow.manager import environment, notice_sender
from virtualflow.manager.record import Record
from virtualflow.system.hash_seed import hash_seed_of


@dataclass(frozen=True, slots=True)
class Submission:
    """*modules* is a snapshot of the script and of what lies beside it, by relative path."""

    description: JobDescription
    modules: Mapping[str, str]
    directory: str = "."
    environment: Mapping[str, str] | None = None  # None: what jobs get of the manager's
    interpreter: str | None = None
    terms: JobTerms = JobTerms()  # noqa: RUF009, frozen

    def check(self, devices: int) -> None:
        """Whether a cluster of this size can take it."""
        check_name(self.description.name)
        _check_terms(self.terms, devices)
        job, variables = self.description, self.environment or {}
        names = [*self.modules, job.script, self.directory, self.interpreter or "", *job.arguments]
        if any("\0" in text for text in (*names, *variables, *variables.values())):
            raise ManagerError("paths, arguments and variables can't contain a zero byte")
        if any(not name or "=" in name for name in variables):
            raise ManagerError("the name of an environment variable is empty, or has a = in it")
        for name, facts in job.emulated.items():
            try:
                Emulated.from_json(facts)
            except (TypeError, ValueError, KeyError, ProfileError) as error:
                raise ManagerError(f"{name} can't be emulated like that: {error}") from error
        if Path(job.script).name not in self.modules:
            raise ManagerError(f"the script {job.script} is not among the modules that came with it")

    @property
    def variables(self) -> dict[str, str]:
        """What the job gets of its owner's environment, or without one of this process's."""
        return environment.allowed(os.environ) if self.environment is None else dict(self.environment)

    def record(self, job_id: str, now: float) -> Record:
        return Record(
            id=job_id,
            description=replace(self.description, hash_seed=hash_seed_of(self.variables)),
            directory=self.directory,
            interpreter=self.interpreter or sys.executable,
            terms=self.terms,
            submitted=now,
        )


def _check_terms(terms: JobTerms, devices: int) -> None:
    check_priority(terms.priority)
    check_owner(terms.owner)
    notice_sender.check(terms.notify)
    if not 1 <= terms.demand <= devices:
        raise ManagerError(f"a demand of {terms.demand} can't be met: the cluster has {counted(devices, 'device')}")
    if not 1 <= terms.min <= terms.demand:
        raise ManagerError(f"a minimum of {counted(terms.min, 'device')} does not fit a demand of {terms.demand}")
    if terms.virtual_nodes is not None and terms.virtual_nodes < terms.min:
        raise ManagerError(
            f"{counted(terms.virtual_nodes, 'virtual node')} can't run on {counted(terms.min, 'device')}: "
            "each device needs one"
        )
    if terms.expect_seconds is not None and not 1e-3 <= terms.expect_seconds < 1e9:
        raise ManagerError(f"an expected time of {terms.expect_seconds} s: it must be at least a millisecond")


def check_priority(priority: float) -> None:
    if not 1e-3 <= priority < 1e6:  # a linear program can't resolve weights that are further apart
        raise ManagerError(f"a priority is a number above 0, from 0.001 to below a million, not {priority:g}")


def check_owner(owner: str) -> None:
    if not re.fullmatch(r"[^\s/\x00-\x1f\x7f]{0,64}", owner):
        raise ManagerError(f"the owner {owner!r} is not the name of a user: at most 64 characters, no space and no /")
