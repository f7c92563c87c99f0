"""transformers' Trainer with micro-batches by length, recomputed activations, smoothed labels and noisy embeddings."""

import json
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

import virtualflow as vf
from virtualflow.transformers import Trainer

WORDS = 64


def padded(rows):
    rows = [row["input_ids"] for row in rows]
    width = max(len(row) for row in rows)
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.long)
    for place, row in enumerate(rows):
        ids[place, : len(row)], mask[place, : len(row)] = row, 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


vf.seed(0)
sentences = [{"input_ids": torch.randint(1, WORDS, (5 + 7 * number % 12,))} for number in range(45)]
config = GPT2Config(vocab_size=WORDS, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
arguments = TrainingArguments(
    tempfile.gettempdir(),
    per_device_train_batch_size=2,
    gradient_accumulation_steps=4,
    num_train_epochs=3,
    learning_rate=5e-3,
    lr_scheduler_type="cosine",
    warmup_steps=3,
    max_grad_norm=0.5,
    logging_steps=2,
    eval_strategy="epoch",
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    train_sampling_strategy="group_by_length",
    gradient_checkpointing=True,
    label_smoothing_factor=0.1,
    neftune_noise_alpha=5.0,
)
trainer = Trainer(model, arguments, train_dataset=sentences[:33], eval_dataset=sentences[33:], data_collator=padded)
trainer.train()
timed = ("runtime", "per_second")
history = [
    {key: row[key] for key in row if not any(word in key for word in timed)} for row in trainer.state.log_history
]
print(trainer.digest(), json.dumps(history))
