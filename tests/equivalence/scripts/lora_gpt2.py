"""LoRA adapters put into a frozen GPT-2 of Hugging Face; only they are trained, and merged at the end."""

import torch
from torch import nn
from torch.utils.data import TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randint(0, 50, (44, 12)))
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2))
model.requires_grad_(False)


class LoRA(nn.Module):
    def __init__(self, base, rank=2, alpha=4):
        super().__init__()
        inner, outer = base.weight.shape
        self.base, self.scale, self.dropout = base, alpha / rank, nn.Dropout(0.1)
        self.a, self.b = nn.Parameter(torch.randn(inner, rank) * 0.02), nn.Parameter(torch.zeros(rank, outer))

    def forward(self, x):
        return self.base(x) + self.dropout(x) @ self.a @ self.b * self.scale


for block in model.transformer.h:
    block.attn.c_attn = LoRA(block.attn.c_attn)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)


def loss_fn(model, batch):
    (tokens,) = batch
    return model(input_ids=tokens, labels=tokens).loss


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
digest = trainer.digest()
for block in model.transformer.h:
    lora = block.attn.c_attn
    lora.base.weight.data += lora.a @ lora.b * lora.scale
    block.attn.c_attn = lora.base
print(digest, model.transformer.h[0].attn.c_attn.weight.sum().item())
