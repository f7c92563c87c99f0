"""Speech-like sequences with a CTC loss, padded by a collate function.

On CPUs only: gradients of the CTC loss have no deterministic kernel on CUDA
"""

import torch
from torch import nn
from torch.nn.functional import ctc_loss
from torch.nn.utils.rnn import pad_sequence

import virtualflow as vf

vf.seed(0)
lengths = torch.randint(10, 20, (44,)).tolist()
data = [(torch.randn(n, 6), torch.randint(1, 5, (n // 4,))) for n in lengths]


def collate(examples):
    sounds, texts = zip(*examples, strict=True)
    sound_lengths = torch.tensor([len(s) for s in sounds])
    text_lengths = torch.tensor([len(t) for t in texts])
    return pad_sequence(sounds, batch_first=True), pad_sequence(texts, batch_first=True), sound_lengths, text_lengths


model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def loss_fn(model, batch):
    sounds, texts, sound_lengths, text_lengths = batch
    scores = model(sounds).log_softmax(-1).transpose(0, 1)
    losses = ctc_loss(scores, texts, sound_lengths, text_lengths, reduction="none", zero_infinity=True)
    return losses.sum(), len(losses)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, collate_fn=collate)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
