"""Mixed precision with a GradScaler, as for float16: its scale grows while nothing overflows.

Other bits on accelerators: autocast takes other operators there
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cuda" if torch.cuda.is_available() else "cpu", init_scale=2.0**10, growth_interval=3)


def loss_fn(model, batch):
    inputs, labels = batch
    with torch.autocast(inputs.device.type, dtype=torch.float16):
        outputs = model(inputs)
    return cross_entropy(outputs.float(), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, grad_scaler=scaler, clip_grad_norm=1.0)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}, scale {scaler.get_scale()}")
print(trainer.digest(), scaler.get_scale())
