"""What a job's owner says travels as one value: a field that is added to it arrives everywhere, unnamed in between."""

from __future__ import annotations

import io
import tokenize
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
from pydantic import ValidationError

import virtualflow
from tests.manager.worlds import SCRIPT, World, starts, world
from virtualflow.cli.job_options import RunOptions, SubmitOptions, TermOptions
from virtualflow.core.job_description import NOT_SUBMITTED, JobDescription
from virtualflow.core.job_terms import JobTerms
from virtualflow.job.json_lines import decoded, encoded
from virtualflow.job.spec import WorkerSpec
from virtualflow.job.wire_messages import ASSIGNMENTS, WorkAssigned
from virtualflow.manager.api.server import Submit
from virtualflow.manager.api.views import ClusterSource
from virtualflow.manager.submission import Submission

SAID = {
    "script": "job.py",
    "arguments": ["--fast"],
    "memory": {"stages": [3]},
    "after": (),
    "by": 4e9,
    "emulated": {"cpu": {"points": [[8, 0.1]]}},
}
BY_TYPE: dict[Any, Any] = {
    int: 2,
    int | None: 2,
    float: 2.0,
    float | None: 2.0,
    str: "said",
    bool: True,
    dict[str, str]: {"lr": "0.1"},
    tuple[str, ...] | None: ["json"],
}
SETTLED = NOT_SUBMITTED | {"emulated"}  # by the cluster, when it launches the job
__all__ = ["starts", "world"]  # fixtures
SOURCES = Path(virtualflow.__file__).parent


def said_of(described: type, *without: str) -> dict[str, Any]:
    """Something for every field that may be submitted; a field of another type needs a line in SAID."""
    hints = get_type_hints(described)
    names = [field.name for field in fields(described) if field.name not in {*NOT_SUBMITTED, *without}]
    return {name: SAID[name] if name in SAID else BY_TYPE[hints[name]] for name in names}


def test_every_field_that_is_submitted_arrives_in_the_record_at_the_worker_and_in_what_is_shown(world: World) -> None:
    terms = said_of(JobTerms)
    body = Submit(modules=SCRIPT, **said_of(JobDescription, "from_checkpoint"), **terms)
    description = body.said_of(JobDescription)
    assert msgspec.to_builtins(body.said_of(JobTerms)) == terms
    manager = world.manager()
    job_id = manager.submit(Submission(description, SCRIPT, terms=body.said_of(JobTerms)))
    world.opened[-1].close()
    again = world.manager()
    assert {**msgspec.to_builtins(again.records[job_id].terms)} == terms
    shown = ClusterSource(again).job(job_id)
    assert shown["terms"] == terms
    launched = again.fleet.folder(job_id).spec().description
    worker = WorkerSpec("job", launched, "", "0", ("0",), "127.0.0.1", 30.0)
    received = decoded(ASSIGNMENTS, encoded(WorkAssigned(worker, {})))
    assert isinstance(received, WorkAssigned)
    for field in fields(JobDescription):
        if field.name not in SETTLED:
            expected = getattr(description, field.name)
            assert getattr(again.records[job_id].description, field.name) == expected, field.name
            assert getattr(received.spec.description, field.name) == expected, field.name
            assert shown["description"][field.name] == msgspec.to_builtins(expected), field.name


@pytest.mark.parametrize("name", sorted(NOT_SUBMITTED))
def test_what_a_cluster_settles_can_not_be_submitted(name: str) -> None:
    assert name in JobDescription.__dataclass_fields__
    with pytest.raises(ValidationError, match="Extra inputs"):
        Submit(script="job.py", **{name: None})


def test_options_are_called_as_what_they_describe() -> None:
    described = {field.name for field in fields(JobDescription)}
    assert RunOptions().described().keys() <= described
    assert SubmitOptions().described().keys() <= described & Submit.model_fields.keys()
    assert TermOptions().terms().keys() == {field.name for field in fields(JobTerms)}


CARRIERS = ("cli", "manager", "job", "backends", "dashboard")


@pytest.mark.parametrize(("option", "acts"), [("checkpoint_every", set()), ("retries", {"manager/lifecycle.py"})])
def test_nothing_between_an_option_and_what_acts_on_it_names_it(option: str, acts: set[str]) -> None:
    between = (file for folder in CARRIERS for file in (SOURCES / folder).rglob("*.py"))
    named = {str(file.relative_to(SOURCES)) for file in between if names(file, option)}
    assert named == {"cli/job_options.py"} | acts


def names(file: Path, option: str) -> bool:
    """Whether its code does, as a name or in a string of its own; comments and prose do not count."""
    tokens = tokenize.generate_tokens(io.StringIO(file.read_text()).readline)
    return any(token.string.strip("\"'") == option for token in tokens)
