"""Schedule-free SGD, written by hand: the optimizer swaps the weights for evaluation and back."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))


class SGDScheduleFree(torch.optim.Optimizer):
    def __init__(self, params, lr, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0, "train_mode": False, "weight_sum": 0.0})

    @torch.no_grad()
    def eval(self):
        self._swap(False, lambda beta: 1 - 1 / beta)

    @torch.no_grad()
    def train(self):
        self._swap(True, lambda beta: 1 - beta)

    def _swap(self, train, weight):
        for group in self.param_groups:
            if group["train_mode"] != train:
                for p in group["params"]:
                    if "z" in self.state[p]:
                        p.lerp_(self.state[p]["z"], weight(group["beta"]))
                group["train_mode"] = train

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            if not group["train_mode"]:
                raise RuntimeError("optimizer.train() was not called")
            group["weight_sum"] += group["lr"] ** 2
            ckp1 = group["lr"] ** 2 / group["weight_sum"]
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.clone())
                p.lerp_(z, ckp1)
                p.add_(p.grad, alpha=group["lr"] * (group["beta"] * (1 - ckp1) - 1))
                z.sub_(p.grad, alpha=group["lr"])
            group["k"] += 1


optimizer = SGDScheduleFree(model.parameters(), lr=0.1)


def loss_fn(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


def right(model, batch):
    return (model(batch[0]).argmax(1) == batch[1]).sum(), len(batch[1])


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(3):
    model.train()
    optimizer.train()
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    model.eval()
    optimizer.eval()
    print(f"epoch {epoch}: loss {loss:.4f}, right {trainer.evaluate(data, right):.1%}")
print(trainer.digest())
