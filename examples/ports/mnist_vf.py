"""A convolutional network on small images, on any number of devices: mnist_plain.py, ported.

    vf run --devices 2 examples/ports/mnist_vf.py --epochs 1 --examples 6000

The DataLoaders stay as they were: their batch is the global one.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Subset

import virtualflow as vf
from inputs import images


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3)
        self.conv2 = nn.Conv2d(16, 32, 3)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.LazyLinear(64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(self.dropout(x.flatten(1))))
        return F.log_softmax(self.fc2(x), dim=1)


def loss_fn(model, batch):
    data, target = batch
    return F.nll_loss(model(data), target)


def test_loss(model, batch):
    data, target = batch
    return F.nll_loss(model(data), target, reduction="sum"), len(target)


def right_answers(model, batch):
    data, target = batch
    return (model(data).argmax(1) == target).sum(), len(target)


def train(args, trainer, loader, epoch):
    for batch in trainer.batches(loader):
        loss = trainer.step(batch)
        if batch.step % args.log_interval == 0:
            print(f"epoch {epoch}  batch {batch.step}/{len(loader)}  loss {loss:.4f}")


def test(trainer, loader):
    loss, accuracy = trainer.evaluate(loader, test_loss), trainer.evaluate(loader, right_answers)
    print(f"test  loss {loss:.4f}  accuracy {accuracy:.1%}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--examples", type=int, help="only this number, of each set")
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=100)
    parser.add_argument("--save", metavar="FILE")
    args = parser.parse_args()
    vf.seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_set, test_set = images(train=True), images(train=False)
    if args.examples:
        train_set, test_set = (Subset(images, range(args.examples)) for images in (train_set, test_set))
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=1000)

    model = Net().to(device)
    model(train_set[0][0][None].to(device))  # the lazy layer takes its size from it
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=args.batch_size, virtual_nodes=8, state=[scheduler])
    for epoch in trainer.epochs(args.epochs):
        train(args, trainer, train_loader, epoch)
        test(trainer, test_loader)
        scheduler.step()
    if args.save:
        trainer.export(args.save)
    print("digest", trainer.digest())


if __name__ == "__main__":
    main()
