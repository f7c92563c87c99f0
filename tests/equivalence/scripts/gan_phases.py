"""A GAN in two phases: the discriminator, with batch norm, runs inside the generator's loss."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10))
models = {
    "g": nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10)),
    "d": nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(16, 1)),
}
optimizers = {name: torch.optim.Adam(models[name].parameters(), lr=1e-3, betas=(0.5, 0.999)) for name in models}


def d_loss(models, batch):
    (real,) = batch
    fake = models["g"](torch.randn(len(real), 4, device=real.device)).detach()
    scores, judged = models["d"](real), models["d"](fake)
    loss = bce(scores, torch.ones_like(scores)) + bce(judged, torch.zeros_like(judged))
    return loss, {"fooled": ((judged > 0).sum(), len(judged))}


def g_loss(models, batch):
    scores = models["d"](models["g"](torch.randn(len(batch[0]), 4, device=batch[0].device)))
    return bce(scores, torch.ones_like(scores))


phases = {"d": (optimizers["d"], d_loss), "g": (optimizers["g"], g_loss)}
trainer = vf.Trainer(models, phases, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        judged = trainer.step(batch, "d")
        if batch.step % 2:
            loss = trainer.step(batch, "g")
    print(f"epoch {epoch}: loss {judged:.4f} {loss:.4f}, fooled {judged.metrics['fooled']:.3f}")
print(trainer.digest())
