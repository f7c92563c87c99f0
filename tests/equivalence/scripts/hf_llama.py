"""A Llama of Hugging Face, with grouped attention; its loss counts tokens.

Other bits on accelerators: attention is another kernel there than the CPU's own
"""

import torch
from torch.utils.data import TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM

import virtualflow as vf

vf.seed(0)
tokens, lengths = torch.randint(0, 50, (44, 12)), torch.randint(3, 12, (44, 1))
data = TensorDataset(tokens, tokens.masked_fill(torch.arange(12) >= lengths, -100))
config = LlamaConfig(
    vocab_size=50,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=16,
)
model = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def loss_fn(model, batch):
    tokens, labels = batch
    counted = (labels[:, 1:] != -100).sum()
    return model(input_ids=tokens, labels=labels).loss * counted, counted


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, clip_grad_norm=1.0)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
