"""What requests to the HTTP API may have in their bodies."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints

import msgspec
from pydantic import BaseModel, ConfigDict, Field, create_model

from virtualflow.core.job_description import NOT_SUBMITTED, JobDescription
from virtualflow.core.job_terms import JobTerms
from virtualflow.manager.token_book import Role

MOST = 1 << 31

WholeNumber = Annotated[int, Field(ge=0, le=MOST)]
Described = TypeVar("Described", JobDescription, JobTerms)


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NeededMemory(Body):
    """What a job needs, in bytes: for each stage, or one for a whole model; and for a virtual node's activations."""

    stages: tuple[Annotated[int, Field(ge=0, le=1 << 62)], ...] = Field(min_length=1, max_length=4096)
    node: int = Field(default=0, ge=0, le=1 << 62)
    copies: int = Field(default=2, ge=1, le=MOST)


class Submitted(Body):
    """A job. Without *modules*, the script is a path on the manager's machine, as *from_checkpoint* always is."""

    script: str = Field(min_length=1, max_length=4096)
    modules: dict[str, str] | None = None
    arguments: list[str] = Field(default_factory=list, max_length=1000)
    directory: str | None = Field(default=None, max_length=4096)
    environment: dict[str, str] | None = None
    interpreter: str | None = Field(default=None, max_length=4096)
    memory: NeededMemory | None = None

    def said_of(self, described: type[Described]) -> Described:
        """What it says of a job's description, or of its terms."""
        return msgspec.convert(self.model_dump(include={option.name for option in fields(described)}), described)


def _options_of(described: type) -> dict[str, Any]:
    """What else may be submitted: pydantic's fields for those of a description, or of terms."""
    hints, counts = get_type_hints(described), {int: WholeNumber, int | None: WholeNumber | None}
    defaults = {
        option.name: option.default if option.default_factory is MISSING else option.default_factory()
        for option in fields(described)
        if option.name not in NOT_SUBMITTED | Submitted.model_fields.keys()
    }
    return {name: (counts.get(hints[name], hints[name]), default) for name, default in defaults.items()}


if TYPE_CHECKING:
    Submit = Submitted
else:
    Submit = create_model("Submit", __base__=Submitted, **_options_of(JobDescription), **_options_of(JobTerms))


class Resume(Body):
    """Where to go on: a step of the job's, or a file on the manager's machine; its last checkpoint without that."""

    from_checkpoint: str | None = Field(default=None, max_length=4096)


class NewPriority(Body):
    priority: float


class Resize(Body):
    """How many devices at most, or "auto" for what the policy gives."""

    devices: Annotated[int, Field(le=MOST)] | Literal["auto"]


class Maintenance(Body):
    """When a device is to be out, in seconds since the epoch."""

    begin: float = Field(ge=0, le=1e11)
    end: float = Field(ge=0, le=1e11)


class Down(Body):
    keep_jobs: bool = False


class NewToken(Body):
    """Without an *owner*, whose jobs a submitter's token submits, it is called as the token."""

    name: str = Field(min_length=1, max_length=64)
    role: Role
    owner: str = Field(default="", max_length=64)
