"""Which job a person means: by its id, by the beginning of its id, or by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping

from virtualflow.errors import AmbiguousJobError, ConfigError


def check_name(name: str) -> None:
    """Raise ConfigError for a name that no job can have. Without one, it is called like its script."""
    if not re.fullmatch(r"\w[\w .@+-]{0,63}", name or "x") or ".." in name:
        raise ConfigError(
            f"the name {name!r} can't be used: up to 64 letters, digits, spaces and . _ - @ + are allowed"
        )


def job_called(text: str, names: Mapping[str, str]) -> str | None:
    """The id of the job that *text* names, among *names* by id; None if there is none. Raises AmbiguousJobError."""
    if text in names:
        return text
    begins = [job_id for job_id in names if text and job_id.startswith(text)]
    matches = begins or [job_id for job_id, name in names.items() if name == text]
    if len(matches) > 1:
        raise AmbiguousJobError(f"{text!r} fits {len(matches)} jobs: {', '.join(matches[-5:])}. Use one of these ids.")
    return matches[0] if matches else None
