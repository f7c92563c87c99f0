"""A language model that carries its hidden state from batch to batch, as an attribute that forward sets.

Refused: HiddenStateError "keeps something in 'hidden'"
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randint(0, 30, (48, 9)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 8)
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.head = nn.Linear(16, 30)
        self.hidden = None

    def forward(self, tokens):
        if self.hidden is None:
            self.hidden = tuple(torch.zeros(1, len(tokens), 16, device=tokens.device) for _ in range(2))
        self.hidden = tuple(h.detach() for h in self.hidden)
        states, self.hidden = self.lstm(self.embed(tokens), self.hidden)
        return self.head(states)


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)


def loss_fn(model, batch):
    (tokens,) = batch
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


trainer = vf.Trainer(
    model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, sampler=lambda epoch: range(48), clip_grad_norm=0.25
)
for epoch in trainer.epochs(2):
    model.hidden = None
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
