"""Mixtral of Hugging Face: experts that may see no token, and the router's auxiliary loss.

Other bits on accelerators: attention is another kernel there than the CPU's own
"""

import torch
from torch.utils.data import TensorDataset
from transformers import MixtralConfig, MixtralForCausalLM

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randint(0, 50, (44, 12)))
config = MixtralConfig(
    vocab_size=50,
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    num_local_experts=6,
    num_experts_per_tok=1,
    output_router_logits=True,
    max_position_embeddings=32,
    router_jitter_noise=0.1,
)
model = MixtralForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def loss_fn(model, batch):
    (tokens,) = batch
    return model(input_ids=tokens, labels=tokens).loss


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, clip_grad_norm=1.0)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
