"""A class that owns model, optimizer and loop, with callbacks and meters; the loss is one of its methods."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import virtualflow as vf


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n


class Logger:
    def __init__(self):
        self.history = []

    def on_batch_end(self, learner, loss):
        self.history.append(loss)

    def on_epoch_end(self, learner, meter):
        if learner.trainer.is_lead:
            print(f"epoch {learner.epoch}: loss {meter.sum / meter.count:.4f}")


class Learner:
    def __init__(self, epochs, callbacks=()):
        self.count, self.callbacks = epochs, callbacks
        self.model = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.PReLU(), nn.Linear(16, 3))
        self.criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]), label_smoothing=0.1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, nesterov=True, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [1, 2], gamma=0.3)
        self.trainer = vf.Trainer(
            self.model, self.optimizer, self.compute_loss, batch_size=8, virtual_nodes=4, state=[self.scheduler]
        )

    def compute_loss(self, model, batch):
        self.batch = batch
        self.x, self.y = batch
        self.loss = self.criterion.to(self.x.device)(self.model(self.x), self.y)
        return self.loss

    def fit(self, data):
        for epoch in self.trainer.epochs(self.count):
            self.epoch = epoch
            meter = AverageMeter()
            for batch in self.trainer.batches(data):
                loss = self.trainer.step(batch)
                meter.update(loss, batch.examples)
                for callback in self.callbacks:
                    callback.on_batch_end(self, loss)
            self.scheduler.step()
            for callback in self.callbacks:
                callback.on_epoch_end(self, meter)


if __name__ == "__main__":
    vf.seed(3)
    data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
    learner = Learner(epochs=3, callbacks=[Logger()])
    learner.fit(data)
    print(learner.trainer.digest())
