"""Batches that the devices of a job have evaluated together, in the form in which transformers collects them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState

OUTPUTS = "outputs of virtualflow"


class EvaluatedBatches(DataLoaderStateMixin):
    """Stands for the DataLoader of an evaluation: gives for each batch its main input, and what came out of it."""

    _drop_last = False

    def __init__(self, results: list[tuple[Any, Any]], loader: Any, batch_size: int, main_input: str) -> None:
        self.dataset = loader.dataset
        self.batch_size = self.total_batch_size = batch_size
        self.gradient_state = GradientState()
        self._results = results
        self._main_input = main_input

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.begin()
        for number, (main, outputs) in enumerate(self._results):
            self.end_of_dataloader = number == len(self) - 1
            yield {self._main_input: main, OUTPUTS: outputs}
        self.end()
