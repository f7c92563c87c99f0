"""What Lightning's loops see of a DataLoader: tickets, one for a batch. The examples are loaded where they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler

from virtualflow.core.sharding import GlobalBatch
from virtualflow.errors import ConfigError
from virtualflow.train.open_pass import OpenPass


class Ticket:
    """Stands for a batch that no worker has as a whole. Callbacks get it in the place of the batch."""


class TrainingTicket(Ticket):
    """A global batch: which examples it has, by virtual node."""

    def __init__(self, batch: GlobalBatch) -> None:
        self.batch = batch


class ValidationTicket(Ticket):
    """Batch *number* of a pass that all workers share out."""

    def __init__(self, shared: SharedLoader, number: int) -> None:
        self.shared = shared
        self.number = number


class GlobalLoader:
    """The training DataLoader: its batches are the global ones. Workers come and go between two of them."""

    def __init__(
        self,
        loader: DataLoader[Any],
        open_pass: Callable[[DataLoader[Any], int], OpenPass],
        crossed: Callable[[OpenPass, int], GlobalBatch],
    ) -> None:
        self.dataset = loader.dataset
        self.sampler = self  # Lightning tells the sampler which epoch it is
        self._loader = loader
        self._open_pass = open_pass
        self._crossed = crossed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[TrainingTicket]:
        passing = self._open_pass(self._loader, self._epoch)
        for step in range(passing.first_step, passing.steps):
            yield TrainingTicket(self._crossed(passing, step))

    def state_dict(self) -> dict[str, Any]:
        return {}  # where it stands is part of the job's state

    def load_state_dict(self, _: dict[str, Any]) -> None:
        """Nothing to do: see ``state_dict``."""


class SharedLoader:
    """A validation DataLoader, each batch of which one worker computes. *results* are those of the running pass."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        if isinstance(loader.dataset, IterableDataset) or type(loader.sampler) is not SequentialSampler:
            raise ConfigError(
                "a validation DataLoader that does not go through a map-style dataset in its own order can't be shared "
                "out. Use shuffle=False, or VirtualFlowStrategy(share_validation=False): every worker then computes "
                "all of it."
            )
        self.loader = loader
        self.dataset = loader.dataset
        self.results: list[Any] = []

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[ValidationTicket]:
        self.results = []
        return (ValidationTicket(self, number) for number in range(len(self)))

    def numbered(self, batches: int) -> tuple[Numbered, Callable[[list[Any]], Any], int]:
        """The examples of the first *batches*, how to collate them to (number of the batch, batch), and its size."""
        size, collate = self.loader.batch_size or 1, self.loader.collate_fn

        def collate_numbered(items: list[tuple[int, Any]]) -> tuple[int, Any]:
            return items[0][0] // size, collate([item for _, item in items])

        return Numbered(self.dataset, min(batches, len(self)) * size), collate_numbered, size


class Numbered(Dataset[tuple[int, Any]]):
    """A dataset's first examples, each with its index."""

    def __init__(self, dataset: Any, most: int) -> None:
        self._dataset = dataset
        self._length = min(most, len(dataset))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, self._dataset[index]
