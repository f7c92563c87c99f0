"""A job as a user writes it, with all that can go wrong when a lead is lost: ``job.py FOLDER [POINT-HIT-DEVICE ...]``.

A worker whose device is named is killed when it reaches that point, one such time after the other. While there is a
file ``slow`` in the folder, steps take ever longer, so that a test can do all that it plans.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from transformers import EarlyStoppingCallback, TrainerCallback

from tests.transformers.tiny import Sentences, accuracy, history, trainer
from virtualflow.testing import kill_at
from virtualflow.train import solo


class Watcher(TrainerCallback):
    """Counts steps, and on the main process alone wants a save after the fifth."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps += 1
        control.should_save = control.should_save or (state.is_world_process_zero and self.steps == 5)
        if (self.folder / "slow").exists():
            time.sleep(0.02 * 1.35**state.global_step)


class Alone(TrainerCallback):
    """One that only the first main process has."""


def run(folder: Path) -> dict[str, Any]:
    """Train; return what must be equal however it ran."""
    watcher = Watcher(folder)
    hf = trainer(
        folder,
        callbacks=[watcher, EarlyStoppingCallback(2)],
        eval_dataset=Sentences(21, seed=1),
        compute_metrics=accuracy,
        num_train_epochs=6,
        gradient_accumulation_steps=3,
        logging_steps=3,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=4,
        save_total_limit=2,
        eval_on_start=True,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        report_to="tensorboard",
        disable_tqdm=False,
        include_num_input_tokens_seen="all",
    )
    if hf.is_world_process_zero():
        hf.add_callback(Alone())
    output = hf.train()
    hf.save_model(str(folder / "model"))
    return {
        "digest": hf.digest(),
        "history": history(hf),
        "loss": output.training_loss,
        "steps": watcher.steps,
        "tokens": hf.state.num_input_tokens_seen,
        "best": hf.state.best_global_step,
        "final": hf.evaluate()["eval_loss"],
        "lead": hf.is_world_process_zero(),
    }


if __name__ == "__main__":
    place = Path(sys.argv[1])
    for order in sys.argv[2:]:
        point, hit, device = order.split("-")
        if solo.current().device == device and not solo.current().joining:
            kill_at(point, int(hit), place / f"killed-{point}")
    ended = run(place)
    if ended["lead"]:
        (place / "ended.json").write_text(json.dumps(ended))
