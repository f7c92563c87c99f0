"""Which job a person means: by its id, by the beginning of its id, or by its name."""

from __future__ import annotations

from collections.abc import Mapping

from virtualflow.errors import AmbiguousJobError


def job_called(text: str, names: Mapping[str, str]) -> str | None:
    """The id of the job that *text* names, among *names* by id; None if there is none. Raises AmbiguousJobError."""
    if text in names:
        return text
    begins = [job_id for job_id in names if text and job_id.startswith(text)]
    found = begins or [job_id for job_id, name in names.items() if name == text]
    if len(found) > 1:
        raise AmbiguousJobError(f"{text!r} may be any of {len(found)} jobs: {', '.join(found[-5:])}. Use an id.")
    return found[0] if found else None
