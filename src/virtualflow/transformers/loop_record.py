"""What transformers' loop knows besides model, optimizer and schedule: part of the job, so that workers can join."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

from transformers import TrainerState
from transformers.trainer_callback import ExportableState

from virtualflow.train.kept_attributes import KeptAttributes
from virtualflow.transformers.noted_metrics import notes_of, set_notes

_COUNTERS = (
    "_total_loss_scalar",
    "_globalstep_last_logged",
    "_initial_global_step",
    "_initial_num_input_tokens_seen",
    "current_flos",
)


class LoopRecord:
    """The Trainer's state, its loop's counters and its callbacks' attributes, for ``state=``.

    The lead's count: log entries hold times, and a callback may do something on the main process alone.
    """

    of_the_lead = True

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._pending: dict[str, Any] | None = None
        self.has_foreign_callbacks = False  # on the lead
        self.started = time.time()
        self._seconds = 0.0  # that the job has trained for, at the last boundary

    def cross_boundary(self) -> None:
        """Another step comes: how long has it taken so far?"""
        self._seconds = time.time() - self.started

    def state_dict(self) -> dict[str, Any]:
        if self._pending is not None:
            return self._pending
        trainer, attributes = self._trainer, self._attributes()
        counters = {name: getattr(trainer, name, 0) for name in _COUNTERS}
        contents = {
            "state": dataclasses.asdict(trainer.state),
            "counters": counters,
            "loss": float(getattr(trainer, "_tr_loss", 0.0)),
            "seconds": self._seconds,
            "notes": notes_of(trainer),
            "has_foreign_callbacks": self.has_foreign_callbacks,
        }
        callbacks = [(type(callback).__name__, attributes.take(callback)) for callback in self._kept_callbacks()]
        return {"json": json.dumps(contents), "callbacks": callbacks}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take the Trainer's state at once, and the rest in ``apply``: the loop resets that at its start."""
        self._pending = saved
        contents = json.loads(saved["json"])
        self._trainer.state = TrainerState(**contents["state"])
        self.has_foreign_callbacks = contents["has_foreign_callbacks"]

    def apply(self) -> None:
        """The loop has begun, and so have callbacks: set what it has reset."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        trainer, contents, callbacks = self._trainer, json.loads(pending["json"]), list(pending["callbacks"])
        for name, value in contents["counters"].items():
            setattr(trainer, name, value)
        trainer._tr_loss.fill_(contents["loss"])
        set_notes(trainer, contents["notes"])
        self.started = time.time() - contents["seconds"]
        attributes = self._attributes()
        for callback in self._kept_callbacks():
            for place, (name, kept) in enumerate(callbacks):
                if name == type(callback).__name__:
                    attributes.put(callback, kept, name)
                    del callbacks[place]
                    break

    def _attributes(self) -> KeptAttributes:
        trainer, handler = self._trainer, self._trainer.callback_handler
        others = (trainer, trainer.args, trainer.state, trainer.control, trainer.optimizer, trainer.lr_scheduler)
        data = (trainer.train_dataset, trainer.eval_dataset)
        return KeptAttributes(trainer.model, (*others, *data, handler, *handler.callbacks))

    def _kept_callbacks(self) -> list[Any]:
        """The script's, and those of transformers that have a state: others note what they have done in this process,
        such as a bar or a run that they have opened."""
        callbacks = self._trainer.callback_handler.callbacks
        return [callback for callback in callbacks if isinstance(callback, ExportableState) or is_foreign(callback)]


def is_foreign(callback: Any) -> bool:
    """Whether *callback* is the script's, and not one of transformers."""
    return not type(callback).__module__.startswith("transformers.")
