"""A Lookahead around Adam, which is no full optimizer itself."""

import collections

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))


class Lookahead(torch.optim.Optimizer):
    def __init__(self, base, k=3, alpha=0.5):
        self.optimizer, self.k, self.alpha = base, k, alpha
        self.param_groups = base.param_groups
        self.state = collections.defaultdict(dict)
        self.defaults = base.defaults
        self._optimizer_step_pre_hooks = collections.OrderedDict()
        self._optimizer_step_post_hooks = collections.OrderedDict()
        for group in self.param_groups:
            group["counter"] = 0

    @torch.no_grad()
    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        for group in self.param_groups:
            if group["counter"] == 0:
                for p in group["params"]:
                    state = self.state[p]
                    if "slow" not in state:
                        state["slow"] = p.detach().clone()
                    state["slow"] += self.alpha * (p - state["slow"])
                    p.copy_(state["slow"])
            group["counter"] = (group["counter"] + 1) % self.k
        return loss

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self):
        fast = self.optimizer.state_dict()
        ids = {id(p): i for i, p in enumerate(p for g in self.param_groups for p in g["params"])}
        slow = {ids[id(p)]: v for p, v in self.state.items()}
        return {"fast_state": fast["state"], "slow_state": slow, "param_groups": fast["param_groups"]}

    def load_state_dict(self, saved):
        self.optimizer.load_state_dict({"state": saved["fast_state"], "param_groups": saved["param_groups"]})
        self.param_groups = self.optimizer.param_groups
        ps = [p for g in self.param_groups for p in g["params"]]
        self.state = collections.defaultdict(dict, {ps[i]: v for i, v in saved["slow_state"].items()})


optimizer = Lookahead(torch.optim.Adam(model.parameters(), lr=0.02))


def loss_fn(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for _epoch in trainer.epochs(3):
    for batch in trainer.batches(data):
        trainer.step(batch)
print(trainer.digest())
