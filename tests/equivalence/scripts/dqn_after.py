"""Deep Q-learning: after each epoch the agent plays into a replay buffer in state=, which is then trained on."""

import random
from collections import deque

import torch
from torch import nn
from torch.nn.functional import smooth_l1_loss

import virtualflow as vf

vf.seed(0)
q_net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
target_net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
target_net.load_state_dict(q_net.state_dict())
optimizer = torch.optim.Adam(q_net.parameters(), lr=1e-2)


class ReplayMemory:
    def __init__(self, size):
        self.memory = deque(maxlen=size)

    def push(self, *transition):
        self.memory.append(transition)

    def __len__(self):
        return len(self.memory)

    def __getitem__(self, index):
        return self.memory[index]


def loss_fn(q_net, batch):
    states, actions, rewards, following = batch
    values = q_net(states).gather(1, actions[:, None]).squeeze(1)
    with torch.no_grad():
        wanted = rewards + 0.9 * target_net(following).max(1).values
    return smooth_l1_loss(values, wanted)


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
        memory.push(state, action, float(following.sum() > 0), following)
        state = following


memory = ReplayMemory(100)
play(44, 1.0)
trainer = vf.Trainer(q_net, optimizer, loss_fn, batch_size=8, virtual_nodes=4, state=[memory.memory, target_net])
for epoch in trainer.epochs(4):
    for batch in trainer.batches(memory):
        loss = trainer.step(batch)
    play(20, epsilon=0.5)
    target_net.load_state_dict(q_net.state_dict())
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
