"""People name jobs by ids, beginnings of ids and names; whoever may be meant twice is asked."""

from __future__ import annotations

import pytest

from virtualflow.core.job_names import job_called
from virtualflow.errors import AmbiguousJobError

JOBS = {"1117-aaaa": "train", "1117-bbbb": "train", "1118-cccc": "1117-aaaa", "1119-dddd": "tune"}


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("1117-aaaa", "1117-aaaa"),  # an id comes before a name
        ("1117-b", "1117-bbbb"),
        ("1118", "1118-cccc"),
        ("tune", "1119-dddd"),
        ("tun", None),  # the beginning of a name is no name
        ("", None),
        ("nobody", None),
    ],
)
def test_a_job_has_an_id_the_beginning_of_one_or_a_name(text: str, job: str | None) -> None:
    assert job_called(text, JOBS) == job


@pytest.mark.parametrize("text", ["1117", "11", "train"])
def test_what_may_mean_two_jobs_is_refused_with_both(text: str) -> None:
    with pytest.raises(AmbiguousJobError, match=r"1117-aaaa, 1117-bbbb.*Use one of these ids"):
        job_called(text, JOBS)
