"""Checkpoints that a script writes and reads."""

from __future__ import annotations

from collections.abc import Iterator

from virtualflow.porting.advice import Advice, Severity
from virtualflow.porting.ranks import is_guarded
from virtualflow.porting.script import Script, argument


def writes(script: Script) -> Iterator[Advice]:
    for call in script.called("torch.save"):
        path = script.text(argument(call, "f", 1))
        path = "path" if path == "..." else path
        yield script.advice(
            call,
            f"`trainer.save({path})` writes all that the job needs to continue, `trainer.export({path})` the model's "
            "plain state_dict. Every worker calls it; one writes. `vf run` itself keeps checkpoints to resume from.",
        )
    for call in script.called("save_pretrained"):
        if not is_guarded(script, call):
            yield script.advice(call, "only on the lead: `if trainer.is_lead:`.")


def reads(script: Script) -> Iterator[Advice]:
    for call in script.called("torch.load"):
        path = script.text(argument(call, "f", 0))
        path = "path" if path == "..." else path
        yield script.advice(
            call,
            f"to continue a job: `trainer.load({path})`, before the loop, with a file of `trainer.save`; `vf run "
            "--resume JOB` needs no line at all. To begin with trained weights: keep it, before the Trainer is made.",
            Severity.CHECK,
        )


RULES = (writes, reads)
