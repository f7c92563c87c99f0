"""T5 of Hugging Face: an encoder and a decoder with shared embeddings."""

import torch
from torch.utils.data import TensorDataset
from transformers import T5Config, T5ForConditionalGeneration

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randint(1, 50, (44, 12)), torch.randint(1, 50, (44, 6)))
config = T5Config(
    vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0, pad_token_id=0
)
model = T5ForConditionalGeneration(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def loss_fn(model, batch):
    texts, answers = batch
    return model(input_ids=texts, labels=answers).loss


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, clip_grad_norm=1.0)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
