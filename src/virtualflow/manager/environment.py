"""Which variables of its owner's shell go with a job: those that programs need to run, not the secrets beside them."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from virtualflow.errors import ConfigError, LaunchError
from virtualflow.job.folder import write_json

FILE = "environment.json"  # in the job's folder, as long as the job is not over
# Where programs and libraries are, and how they compute; not what the user's other programs read.
ALLOWED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "XDG_CACHE_HOME",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHON*", "VIRTUAL_ENV", "CONDA_*", "CC",
    "CUDA_*", "CUBLAS_*", "CUDNN_*", "NVIDIA_*", "NCCL_*", "GLOO_*", "TORCH*", "PYTORCH_*", "ATEN_*",
    "OMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "HF_HOME", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE",
    "TRANSFORMERS_OFFLINE",
)  # fmt: skip
_SECRET = re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|(^|_)(API_?)?KEY(_|$)|AUTH", re.IGNORECASE)


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """What goes with every job."""
    return {
        name: value
        for name, value in environment.items()
        if any(fnmatchcase(name, pattern) for pattern in ALLOWED) and not _SECRET.search(name)
    }


def chosen(environment: Mapping[str, str], options: Sequence[str]) -> dict[str, str]:
    """What goes with a job whose owner has named more: ``NAME``, ``NAME=VALUE`` or a pattern such as ``WANDB_*``."""
    variables = allowed(environment)
    for option in options:
        name, is_set, value = option.partition("=")
        if not name or (is_set and not name.isidentifier()):
            raise ConfigError(f"--env {option}: expected NAME, NAME=VALUE or a pattern such as 'WANDB_*'")
        if is_set:
            variables[name] = value
            continue
        named = {variable: environment[variable] for variable in environment if fnmatchcase(variable, name)}
        if not named:
            raise ConfigError(f"--env {name}: there is no such variable here. Set it, or use --env {name}=VALUE.")
        variables |= named
    return variables


def keep(folder: Path, environment: Mapping[str, str]) -> None:
    """For the job in *folder*, whenever it is launched."""
    write_json(folder / FILE, dict(environment))


def kept(folder: Path) -> dict[str, str]:
    """What a job was submitted with."""
    try:
        environment = json.loads((folder / FILE).read_text())
        return {str(name): str(value) for name, value in environment.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise LaunchError(
            f"the variables that the job was submitted with can't be read: {error}. Submit it again."
        ) from error


def erase(folder: Path) -> None:
    """The job is over: its variables go, with the secrets that may be among them."""
    with contextlib.suppress(OSError):
        for name in (FILE, f".{FILE}.partial"):
            (folder / name).unlink(missing_ok=True)
