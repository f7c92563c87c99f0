"""A job's committed state as one file that any number of devices can read. Never unpickles code."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch.serialization import default_restore_location
from torch.utils._pytree import tree_map

from virtualflow.core import faults
from virtualflow.errors import CheckpointError
from virtualflow.system import sealed_files
from virtualflow.system.sealed_files import Seal, written_whole

FORMAT = "virtualflow checkpoint"
VERSION = 2
PARAMETERS, BUFFERS = "parameters", "buffers"
HOST = torch.device("cpu")
UNSEALED_VERSION = 1  # of a VirtualFlow that wrote no digests; the rest is the same


def write(path: Path, contents: dict[str, Any]) -> None:
    """Write *contents* to *path*, whole or not at all: a kill while saving leaves the old file."""
    write_atomically(path, {"format": FORMAT, "version": VERSION, **contents})


def write_atomically(path: Path, value: Any) -> None:
    """``torch.save`` into a file beside *path*, with a digest, then rename."""
    try:
        with written_whole(path) as file, Seal(file) as seal:
            torch.save(value, cast(IO[bytes], seal))
            faults.reach("save")
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"cannot write {path}: {error}. A file that was there before is untouched.") from error


def on_host(state: dict[str, Any]) -> dict[str, Any]:
    """A module's *state* with its tensors in the host's memory: it can be read where there is no accelerator."""
    moved: dict[Any, torch.Tensor] = {}

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
            return value
        if value.layout != torch.strided:
            return value.cpu()
        same = value.data_ptr(), value.dtype, value.shape, value.stride()
        return moved.setdefault(same, value.cpu())  # tied weights stay one

    for name, value in state.items():
        state[name] = tree_map(move, value)  # in place: it has versions beside it, as an attribute
    return state


def read(path: Path, device: torch.device = HOST, *, mapped: bool = False) -> dict[str, Any]:
    """The contents of a checkpoint, checked to be one, and to be what was written.

    What lay on the writer's accelerator comes to *device*, all but the parameters: those are copied into the model's.
    If it is *mapped*, tensors stay in the file until they are looked at.
    """
    contents, places = _loaded(path, mapped=mapped)
    if device.type != HOST.type:
        places.put_back(contents, device)
    return contents


def read_mapped(path: Path) -> tuple[dict[str, Any], TensorPlaces]:
    """The contents of a part of a checkpoint, in the file until they are looked at, and where tensors lay."""
    return _loaded(path, mapped=True)


def _loaded(path: Path, *, mapped: bool) -> tuple[dict[str, Any], TensorPlaces]:
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    is_sealed = sealed_files.check(path)
    places = TensorPlaces()
    try:
        contents = torch.load(path, weights_only=True, map_location=places.to_host, mmap=mapped)
    except Exception as error:  # torch raises a dozen types for damaged files
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{path} cannot be read: {reason}. It is truncated, damaged, or not a VirtualFlow checkpoint; use an "
            "earlier one, or save again."
        ) from error
    if not isinstance(contents, dict) or contents.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is not a VirtualFlow checkpoint. A plain state_dict goes into the model with "
            "model.load_state_dict(torch.load(path)) before the Trainer is made."
        )
    if (version := contents.get("version")) not in (UNSEALED_VERSION, VERSION):
        raise CheckpointError(
            f"{path} has checkpoint version {version}, and this is a VirtualFlow that reads version {UNSEALED_VERSION} "
            f"and {VERSION}. Install the VirtualFlow that wrote it."
        )
    if version == VERSION and not is_sealed:
        raise CheckpointError(f"{path} is damaged: its digest is gone. Use an earlier one, or save again.")
    return contents, places


def onto(device: torch.device) -> Callable[[Any, str], Any]:
    """For ``torch.load`` of what is small: what lay on an accelerator comes to *device*, whichever it lay on."""
    return lambda storage, location: default_restore_location(
        storage, location if location == HOST.type else str(device)
    )


class TensorPlaces:
    """Where the tensors of a checkpoint lay when it was written: on the host, or on an accelerator."""

    def __init__(self) -> None:
        self._elsewhere: set[int] = set()  # the host's memory of those that lay on an accelerator

    def to_host(self, storage: Any, location: str) -> Any:
        """For ``torch.load``: leave *storage* on the host, where it has been read to."""
        if location != HOST.type and storage.nbytes():
            self._elsewhere.add(storage.data_ptr())
        return storage

    def lay_elsewhere(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor that was read lay on an accelerator."""
        return tensor.untyped_storage().data_ptr() in self._elsewhere

    def put_back(self, contents: dict[str, Any], device: torch.device) -> None:
        """Move what lay on an accelerator to *device*, this worker's own."""

        def move(value: Any) -> Any:
            return value.to(device) if isinstance(value, torch.Tensor) and self.lay_elsewhere(value) else value

        if self._elsewhere:
            contents |= {key: tree_map(move, value) for key, value in contents.items() if key != PARAMETERS}
        else:  # of a job on CPUs: its modules are moved as a whole
            contents[BUFFERS] = {name: tensor.to(device) for name, tensor in contents[BUFFERS].items()}


def check_same_job(path: Path, saved: dict[str, Any], mine: dict[str, Any]) -> None:
    """Refuse a checkpoint whose job would go on differently here."""
    differing = [f"{key} {saved.get(key)} there, {mine[key]} here" for key in mine if saved.get(key) != mine[key]]
    if differing:
        raise CheckpointError(
            f"{path} is of another job: {'; '.join(differing)}. Continuing from it would give another model than that "
            "job's. Make them equal, or use load(path, force=True) to take its state into this job all the same."
        )


def check_savable(value: Any, what: str) -> None:
    """Refuse *value* now, not at the first save, if it can't be read back without unpickling code."""
    with tempfile.TemporaryFile() as file:
        try:
            torch.save(_without_tensors(value), file)
            file.seek(0)
            torch.load(file, weights_only=True)
        except Exception as error:
            raise CheckpointError(
                f"the state of {what} can't be saved safely: {str(error).splitlines()[0]}. Checkpoints hold "
                "tensors, numbers, strings and dicts, lists and tuples of them."
            ) from error


def _without_tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return None
    if type(value) is dict:
        return {key: _without_tensors(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_without_tensors(item) for item in value)
    return value
