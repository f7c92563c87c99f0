"""A small GPT on bytes, by the step, on any number of devices: gpt_plain.py, ported.

    vf run --devices 2 examples/ports/gpt_vf.py --max-steps 100

The micro-batches that were accumulated are virtual nodes now.
"""

import argparse
import math

import torch
from torch import nn
from torch.nn import functional as F

import virtualflow as vf
from inputs import tokens

parser = argparse.ArgumentParser()
parser.add_argument("--max-steps", type=int, default=300)
parser.add_argument("--eval-interval", type=int, default=100)
parser.add_argument("--eval-batches", type=int, default=8)
parser.add_argument("--batch-size", type=int, default=8, help="of a micro-batch")
parser.add_argument("--accumulate", type=int, default=4, help="micro-batches of an update")
parser.add_argument("--block-size", type=int, default=64)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--out", metavar="FILE")
args = parser.parse_args()

vf.seed(1337)
data = tokens()
split = int(0.9 * len(data))
data = {"train": data[:split], "val": data[split:]}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        q, k, v = (part.unflatten(2, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, layers, width, block_size):
        super().__init__()
        self.token, self.place = nn.Embedding(128, width), nn.Embedding(block_size, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.head = nn.Linear(width, 128)

    def forward(self, x, targets):
        logits = self.head(self.blocks(self.token(x) + self.place.weight[: x.shape[1]]))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(part, size=args.batch_size):
    starts = torch.randint(len(data[part]) - args.block_size, (size,))
    rows = torch.stack([data[part][start : start + args.block_size + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


def get_lr(step):
    warm, least = 20, 0.1
    if step < warm:
        return args.lr * (step + 1) / warm
    done = (step - warm) / max(args.max_steps - warm, 1)
    return args.lr * (least + (1 - least) * 0.5 * (1 + math.cos(math.pi * done)))


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = {}
    for part in data:
        losses[part] = sum(model(*get_batch(part)).item() for _ in range(args.eval_batches)) / args.eval_batches
    model.train()
    return losses


model = GPT(args.layers, args.width, args.block_size)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
progress = vf.State(best=math.inf)
trainer = vf.Trainer(
    model,
    optimizer,
    lambda model, batch: model(*batch),
    batch_size=args.batch_size * args.accumulate,
    virtual_nodes=args.accumulate,
    clip_grad_norm=1.0,
    state=[progress],
)
for batch in trainer.steps(args.max_steps, lambda size: get_batch("train", size)):
    step = trainer.global_step
    for group in optimizer.param_groups:
        group["lr"] = get_lr(step)
    if step % args.eval_interval == 0:
        losses = estimate_loss()
        print(f"step {step}  train {losses['train']:.4f}  val {losses['val']:.4f}")
        if losses["val"] < progress.best:
            progress.best = losses["val"]
            if args.out:
                trainer.save(args.out)
    trainer.step(batch)
print(f"best {progress.best:.4f}")
print("digest", trainer.digest())
