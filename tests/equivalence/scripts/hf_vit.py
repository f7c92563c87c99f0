"""A vision transformer of Hugging Face.

Other bits on accelerators: attention is another kernel there than the CPU's own
"""

import torch
from torch.utils.data import TensorDataset
from transformers import ViTConfig, ViTForImageClassification

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 3, 16, 16), torch.randint(0, 4, (44,)))
config = ViTConfig(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    image_size=16,
    patch_size=4,
    num_labels=4,
)
model = ViTForImageClassification(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def loss_fn(model, batch):
    images, labels = batch
    return model(pixel_values=images, labels=labels).loss


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, clip_grad_norm=1.0)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
