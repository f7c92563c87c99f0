"""What people use of transformers.Trainer works, and goes on with the same bits from transformers' own checkpoints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import EarlyStoppingCallback, TrainerCallback

import virtualflow as vf
from tests.transformers.tiny import Sentences, accuracy, arguments, bert, history, llama, padded, trainer
from virtualflow.errors import ConfigError
from virtualflow.train import solo
from virtualflow.transformers import Seq2SeqTrainer, Trainer
from virtualflow.transformers.hf_trainer import OWN_STATE

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def lora() -> Any:
    return get_peft_model(llama(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.1))


FEATURES: dict[str, tuple[Any, dict[str, Any]]] = {
    "tokens": (llama, {"include_num_input_tokens_seen": "non_padding"}),
    "lora": (lora, {}),
    "bf16": (bert, {"bf16": True}),
    "checkpointing": (llama, {"gradient_checkpointing": True}),
    "smoothing": (llama, {"label_smoothing_factor": 0.1}),
    "by length": (bert, {"train_sampling_strategy": "group_by_length"}),
    "noise": (llama, {"neftune_noise_alpha": 5.0}),
    "more nodes": (bert, {"virtual_nodes": 5}),
    "loader process": (bert, {"dataloader_num_workers": 1}),
}


@pytest.mark.parametrize(("model", "options"), FEATURES.values(), ids=FEATURES)
def test_a_run_that_goes_on_from_a_checkpoint_ends_as_one_that_did_not_stop(
    model: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    whole = trainer(tmp_path, model, save_strategy="steps", save_steps=3, **options)
    before = {name: value.clone() for name, value in whole.model.named_parameters()}
    whole.train()
    moved = {name for name, value in whole.model.named_parameters() if not torch.equal(value, before[name])}
    assert {name for name, value in whole.model.named_parameters() if value.requires_grad} >= moved != set()
    resumed = trainer(tmp_path, model, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    assert resumed.digest() == whole.digest()
    assert history(resumed) == history(whole)


def test_causal_models_train_as_with_transformers_own_trainer(tmp_path: Path) -> None:
    """Its losses are divided by the tokens of all micro-batches, and so are ours; the order of examples is its own."""
    plain = trainer(tmp_path, llama, kind=transformers.Trainer, max_grad_norm=0.0)
    plain.train()
    ours = trainer(tmp_path, llama, max_grad_norm=0.0)
    ours.train()
    for one, other in zip(plain.state.log_history, ours.state.log_history, strict=True):
        assert one.keys() == other.keys()
        for name in {"loss", "grad_norm", "learning_rate", "total_flos", "train_loss"} & one.keys():
            assert one[name] == pytest.approx(other[name], rel=1e-4)


def test_evaluation_gives_what_transformers_own_gives(tmp_path: Path) -> None:
    tests = {"eval_dataset": Sentences(21, seed=1), "compute_metrics": accuracy}
    ours = trainer(tmp_path, max_steps=2, eval_strategy="steps", eval_steps=1, **tests)
    ours.train()
    plain = transformers.Trainer(ours.model, arguments(tmp_path), data_collator=padded, compute_metrics=accuracy)
    wanted, result = plain.predict(tests["eval_dataset"]), ours.predict(tests["eval_dataset"])
    np.testing.assert_allclose(result.predictions, wanted.predictions, rtol=1e-5)
    np.testing.assert_array_equal(result.label_ids, wanted.label_ids)
    assert result.metrics["test_loss"] == pytest.approx(wanted.metrics["test_loss"], rel=1e-5)
    assert result.metrics["test_accuracy"] == wanted.metrics["test_accuracy"]
    assert [entry["step"] for entry in history(ours) if "eval_accuracy" in entry] == [1, 2]


def test_the_best_model_is_loaded_and_training_stops_early(tmp_path: Path) -> None:
    best = {
        "eval_dataset": Sentences(16, seed=1),
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_strategy": "steps",
        "save_steps": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": "loss",
        "num_train_epochs": 20,
        "save_total_limit": 2,
    }
    stopped = trainer(tmp_path, callbacks=[EarlyStoppingCallback(2)], **best)
    stopped.train()
    losses = [entry["eval_loss"] for entry in history(stopped) if "eval_loss" in entry]
    place = int(np.argmin(losses))
    assert len(losses) == place + 3 == stopped.state.global_step < 80
    assert stopped.state.best_model_checkpoint == str(tmp_path / "out" / f"checkpoint-{place + 1}")
    assert stopped.evaluate()["eval_loss"] == losses[place]
    assert {path.name for path in (tmp_path / "out").glob("checkpoint-*")} == {
        f"checkpoint-{place + 1}",
        f"checkpoint-{place + 3}",
    }


def test_a_checkpoint_of_transformers_own_trainer_can_be_gone_on_from(tmp_path: Path) -> None:
    trainer(tmp_path, kind=transformers.Trainer, save_strategy="steps", save_steps=3, max_steps=3).train()
    ends = []
    for _ in range(2):
        ours = trainer(tmp_path)
        ours.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
        assert ours.state.global_step == ours.engine.global_step == 8
        ends.append(ours.digest())
    assert ends[0] == ends[1]


def test_a_callback_sees_every_step_and_what_it_keeps_is_part_of_the_job(tmp_path: Path) -> None:
    class Counts(TrainerCallback):
        def __init__(self) -> None:
            self.steps: list[int] = []
            self.average = torch.zeros(())

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.steps.append(state.global_step)
            self.average += state.global_step
            control.should_training_stop = len(self.steps) == 6

    first = Counts()
    trainer(tmp_path, callbacks=[first], save_strategy="steps", save_steps=3).train()
    assert first.steps == [1, 2, 3, 4, 5, 6]
    second = Counts()
    ours = trainer(tmp_path, callbacks=[second])
    ours.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    assert second.steps == [1, 2, 3, 4, 5, 6]
    assert second.average == first.average == 21
    assert ours.state.global_step == 6


def test_what_a_callback_kept_on_an_accelerator_comes_to_where_the_job_goes_on(tmp_path: Path) -> None:
    class Keeps(TrainerCallback):
        def __init__(self) -> None:
            self.noise = torch.zeros(3)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.noise = self.noise + state.global_step
            control.should_training_stop = state.global_step == 4

    trainer(tmp_path, callbacks=[Keeps()], save_strategy="steps", save_steps=3).train()
    checkpoint = tmp_path / "out" / "checkpoint-3"
    as_from_an_accelerator(checkpoint / OWN_STATE)
    kept = Keeps()
    trainer(tmp_path, callbacks=[kept]).train(resume_from_checkpoint=str(checkpoint))
    assert kept.noise.tolist() == [10.0] * 3


def as_from_an_accelerator(path: Path) -> None:
    """Have a file of torch's say that its tensors lay on the eighth CUDA device of a machine."""
    with ZipFile(path) as file:
        contents = {name: file.read(name) for name in file.namelist()}
    with ZipFile(path, "w") as file:
        for name, content in contents.items():
            is_plan = name.endswith("data.pkl")
            written = content.replace(b"\x03\0\0\0cpu", b"\x06\0\0\0cuda:7") if is_plan else content
            assert not is_plan or written != content
            file.writestr(name, written)


def test_the_micro_batches_are_weighed_by_their_labels(tmp_path: Path) -> None:
    """BERT's classifiers take a mean of their own: transformers adds up those of all micro-batches, ours do not."""
    ours = trainer(tmp_path, max_steps=1, logging_steps=1, count=10)
    rows = padded([ours.train_dataset[index] for index in range(10)])
    with torch.no_grad():
        mean = float(ours.model.eval()(**rows).loss)
    ours.model.config.hidden_dropout_prob = 0.0
    for module in ours.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ours.train()
    assert history(ours)[0]["loss"] == pytest.approx(mean, rel=1e-5)


def test_a_saved_model_is_transformers_own(tmp_path: Path) -> None:
    ours = trainer(tmp_path, max_steps=1)
    ours.train()
    ours.save_model(str(tmp_path / "model"))
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "model")
    for name, value in ours.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)


def test_sequence_to_sequence_models_generate_on_virtual_nodes(tmp_path: Path) -> None:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 32}
    vf.seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0))
    args = transformers.Seq2SeqTrainingArguments(
        str(tmp_path), predict_with_generate=True, generation_max_length=6, max_steps=2, report_to="none",
        use_cpu=True, gradient_accumulation_steps=2, per_device_train_batch_size=2, disable_tqdm=True,
    )  # fmt: skip
    ours = Seq2SeqTrainer(model, args, train_dataset=Sentences(8, causal=True), data_collator=padded)
    ours.train()
    plain = transformers.Seq2SeqTrainer(model, args, data_collator=padded)
    test = Sentences(9, causal=True)
    np.testing.assert_array_equal(ours.predict(test).predictions, plain.predict(test).predictions)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "auto_find_batch_size": ({"auto_find_batch_size": True}, "a device's memory"),
    "lomo": ({"optim": "lomo"}, "adamw_torch"),
    "layerwise": ({"optim": "galore_adamw_layerwise", "optim_target_modules": "all-linear"}, "adamw_torch"),
    "schedule free": ({"optim": "schedule_free_adamw"}, "adamw_torch"),
    "compile": ({"torch_compile": True}, "dynamic=False"),
    "rebalance": ({"train_sampling_strategy": "batch_rebalance"}, "group_by_length"),
    "skip": ({"ignore_data_skip": True}, "Leave it out"),
    "jit": ({"enable_jit_checkpoint": True}, "vf stop"),
}


@pytest.mark.parametrize(("options", "advice"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_hold_is_refused_before_anything_runs(options: dict[str, Any], advice: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=advice):
        trainer(tmp_path, **options)


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("deepspeed", {"zero_optimization": {}}, "deepspeed="),
        ("fsdp", "full_shard", "fsdp="),
        ("fp16", True, "bf16=True"),
        ("_n_gpu", 2, "vf run --devices 2"),
        ("distributed_state", SimpleNamespace(num_processes=2), "torchrun"),
        ("parallelism_config", object(), "parallelism_config"),
    ],
)
def test_so_is_what_this_machine_could_not_even_set(name: str, value: Any, advice: str, tmp_path: Path) -> None:
    args = arguments(tmp_path)
    setattr(args, name, value)
    with pytest.raises(ConfigError, match=advice):
        Trainer(bert(), args, train_dataset=Sentences(8))


def test_streams_searches_and_other_engines_are_refused(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            yield from Sentences(8)

    for stream in (Stream(), vf.Stream(lambda _: [], shards=1)):
        with pytest.raises(ConfigError, match=r"\(Stream\).*have an index.*hf_stream"):
            Trainer(bert(), arguments(tmp_path, max_steps=1), train_dataset=stream, data_collator=padded)
    with pytest.raises(ConfigError, match="vf submit"):
        trainer(tmp_path).hyperparameter_search()
    with pytest.raises(ConfigError, match="before it trains"):
        trainer(tmp_path).digest()


def test_another_loop_than_the_one_it_is_made_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(transformers.Trainer, "_run_epoch")
    with pytest.raises(ConfigError, match="whose loop has no _run_epoch"):
        trainer(tmp_path)


def test_more_devices_than_virtual_nodes_are_refused_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solo.current(), "devices", ("0", "1", "2", "3"))
    with pytest.raises(ConfigError, match=r"3 virtual nodes on 4 devices.*raise gradient_accumulation_steps"):
        trainer(tmp_path)
    assert trainer(tmp_path, virtual_nodes=4).is_world_process_zero()
