"""A language model with tied embeddings; its loss counts tokens, not examples."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

import virtualflow as vf

vf.seed(0)
PADDING = 0
data = [torch.randint(1, 30, (n,)) for n in torch.randint(3, 12, (44,)).tolist()]


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 16, padding_idx=PADDING)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.output = nn.Linear(16, 30, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.output(self.layer(self.embedding(tokens), src_mask=mask, is_causal=True))


def collate(texts):
    return pad_sequence(texts, batch_first=True, padding_value=PADDING)


def loss_fn(model, tokens):
    scores, following = model(tokens[:, :-1]), tokens[:, 1:]
    total = cross_entropy(scores.flatten(0, 1), following.flatten(), ignore_index=PADDING, reduction="sum")
    return total, (following != PADDING).sum()


model = LanguageModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, clip_grad_norm=1.0, collate_fn=collate)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
