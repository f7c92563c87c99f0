"""Deep Q-learning with a replay buffer that is not in state=: a worker that joins has another one.

Refused when grown, killed, resumed: HiddenStateError "dataset is another one"
"""

import random
from collections import deque

import torch
from torch import nn
from torch.nn.functional import smooth_l1_loss

import virtualflow as vf

vf.seed(0)
q_net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(q_net.parameters(), lr=1e-2)
memory = deque(maxlen=44)


def loss_fn(q_net, batch):
    states, actions, rewards, _ = batch
    values = q_net(states).gather(1, actions[:, None]).squeeze(1)
    return smooth_l1_loss(values, rewards)


def play(steps, epsilon):
    state = torch.zeros(4)
    for _ in range(steps):
        with torch.no_grad():
            action = (
                random.randrange(2)
                if random.random() < epsilon
                else int(q_net(state.to(q_net[0].weight.device)).argmax())
            )
        following = 0.9 * state + torch.randn(4) * (1 + action)
        memory.append((state, action, float(following.sum() > 0), following))
        state = following


play(44, 1.0)
trainer = vf.Trainer(q_net, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(4):
    for batch in trainer.batches(memory):
        loss = trainer.step(batch)
    play(20, epsilon=0.5)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
