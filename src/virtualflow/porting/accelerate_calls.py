"""What a script asks of accelerate."""

from __future__ import annotations

from collections.abc import Iterator

from virtualflow.porting.advice import Advice
from virtualflow.porting.call_rules import CallRule, advise_calls
from virtualflow.porting.script import Script

CALLS = (
    CallRule(
        ("Accelerator",),
        "delete it: the Trainer does what it did, and `vf run --devices N` takes the place of `accelerate launch`. "
        "docs/how-to/port-accelerate.md goes through a script.",
    ),
    CallRule(
        ("accelerator.prepare",),
        "delete it: model, optimizer and loader go to the Trainer as they are, a schedule into state=[...].",
    ),
    CallRule(("accelerator.accumulate",), "delete it: virtual_nodes= is the number of micro-batches of an update."),
    CallRule(("accelerator.print",), "`print(...)`: `vf run` shows what the lead prints; or `if trainer.is_lead:`."),
    CallRule(
        (
            "accelerator.gather",
            "accelerator.gather_for_metrics",
            "accelerator.reduce",
            "accelerator.pad_across_processes",
        ),
        "delete it: `trainer.evaluate` and `trainer.predict` give every worker the result over the whole dataset.",
    ),
    CallRule(
        ("accelerator.wait_for_everyone", "accelerator.end_training"),
        "delete it: calls of the Trainer keep the workers together.",
    ),
    CallRule(("accelerator.unwrap_model",), "`{}` itself: nothing wraps it."),
    CallRule(
        ("accelerator.save_state", "accelerator.save", "accelerator.save_model"),
        "`trainer.save(path)`, on every worker; `trainer.export(path)` for the model alone.",
    ),
    CallRule(
        ("accelerator.load_state",),
        "`trainer.load(path)`, before the loop; `vf run --resume JOB` needs no line at all.",
    ),
    CallRule(("accelerator.autocast",), "`torch.autocast(...)` in loss_fn, around the forward pass."),
    CallRule(
        ("accelerator.log", "accelerator.init_trackers"),
        "only on the lead: `if trainer.is_lead:`, with a logger of your own.",
    ),
)


def calls(script: Script) -> Iterator[Advice]:
    if script.imports("accelerate"):
        yield from advise_calls(script, CALLS)
        for node in script.named("accelerator.sync_gradients"):
            yield script.advice(node, "delete the condition: one `trainer.step(batch)` is one update.")


RULES = (calls,)
