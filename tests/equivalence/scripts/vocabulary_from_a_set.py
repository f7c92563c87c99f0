"""A vocabulary made from a set of words: its order depends on how Python hashes strings."""

import random

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import virtualflow as vf

vf.seed(0)
WORDS = ["the", "small", "large", "red", "green", "dog", "cat", "bird", "runs", "sleeps", "sings", "tree", "river"]
texts = [[random.choice(WORDS) for _ in range(6)] for _ in range(44)]
vocabulary = {word: number for number, word in enumerate({word for text in texts for word in text})}
data = [(torch.tensor([vocabulary[word] for word in text]), text.count("the")) for text in texts]

model = nn.Sequential(nn.EmbeddingBag(len(vocabulary), 8), nn.ReLU(), nn.Linear(8, 7))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def loss_fn(model, batch):
    words, counts = batch
    return cross_entropy(model(words), counts)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
