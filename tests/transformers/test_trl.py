"""TRL's SFTTrainer on virtual nodes: what it trains, and all that it logs, does not depend on the devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Finished
from tests.job.driven import Driven, after_a_loss, to
from tests.job.test_other_loops import kill_the_lead
from virtualflow.backends.local import LocalBackend

pytest.importorskip("trl", reason="needs trl")
pytestmark = pytest.mark.timeout(300)  # every worker imports it

SCRIPT = """
import json
from datasets import Dataset
from tests.transformers.tiny import history, llama
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer
import virtualflow as vf
from virtualflow.transformers import Trainer

class Trained(Trainer, SFTTrainer):
    pass

class Pace(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        state.global_step and pace(state)

letters = "abcdefgh"
words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>", *letters])}, "<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
texts = [" ".join(letters[(3 * i + 5 * j) % 8] for j in range(2 + i % 6)) for i in range(42)]
data = Dataset.from_dict({"text": texts})
vf.seed(0)
args = SFTConfig(
    str(folder / "out"), per_device_train_batch_size=4, gradient_accumulation_steps=3, num_train_epochs=3,
    learning_rate=1e-2, logging_steps=3, eval_strategy="epoch", save_strategy="no", report_to="none",
    disable_tqdm=True, use_cpu=True, bf16=False, max_length=16,
)
hf = Trained(llama(), args, train_dataset=data, eval_dataset=data, processing_class=tokenizer, callbacks=[Pace()])
hf.train()
if hf.is_world_process_zero():
    (folder / "ended.json").write_text(json.dumps([hf.digest(), history(hf)]))
"""


def ended(job: Finished) -> list[object]:
    assert job.outcome.code == 0, job.failure
    result: list[object] = json.loads((job.folder.parent / "ended.json").read_text())
    return result


def test_sft_through_growth_and_the_death_of_the_lead(tmp_path: Path) -> None:
    with LocalBackend(preload=["trl.SFTTrainer"], environment={"HF_HUB_OFFLINE": "1"}) as backend:
        calm = ended(Driven(backend, tmp_path / "calm", SCRIPT).run(1))
        plan = [(3, to(3)), (6, kill_the_lead), (8, after_a_loss(to(2)))]
        assert ended(Driven(backend, tmp_path / "driven", SCRIPT).run(2, plan)) == calm
    (last,) = [entry for entry in reversed(calm[1]) if "num_tokens" in entry][:1]  # type: ignore[call-overload]
    assert last["num_tokens"] == 3 * sum(2 + number % 6 + 1 for number in range(42))  # with the end of each text
