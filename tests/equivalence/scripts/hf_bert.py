"""A BERT classifier of Hugging Face, with padding masked out."""

import torch
from torch.utils.data import TensorDataset
from transformers import BertConfig, BertForSequenceClassification

import virtualflow as vf

vf.seed(0)
tokens, lengths = torch.randint(1, 50, (44, 12)), torch.randint(3, 12, (44, 1))
mask = (torch.arange(12) < lengths).long()
data = TensorDataset(tokens * mask, mask, torch.randint(0, 2, (44,)))
config = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)
model = BertForSequenceClassification(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def loss_fn(model, batch):
    tokens, mask, labels = batch
    return model(input_ids=tokens, attention_mask=mask, labels=labels).loss


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, clip_grad_norm=1.0)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
