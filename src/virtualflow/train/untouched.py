"""Notices what a virtual node writes where the next one would start from it: parameters."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from virtualflow.core.wording import listed
from virtualflow.errors import HiddenStateError
from virtualflow.train.state import checksum, named_parameters


class Untouched:
    """The model's parameters as they are now, to be compared with what a virtual node leaves behind.

    A write in place raises a version counter and a replaced tensor lies elsewhere, which costs nothing to see. A write
    to ``parameter.data`` shows *by_value* only.
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, Tensor], *, by_value: bool) -> None:
        self._model = model
        self._parameters = parameters
        self._by_value = by_value
        self._marks = {name: _mark(parameter) for name, parameter in parameters.items()}
        self._sums = {name: checksum(parameter) for name, parameter in parameters.items()} if by_value else {}

    def check_forward(self, global_step: int) -> None:
        """Raise an error that names the parameters that were written, as far as that can be seen at once."""
        written = [name for name, parameter in self._parameters.items() if _mark(parameter) != self._marks[name]]
        if self._by_value:  # what only moved, as an LSTM's weights do when they are packed, has not changed
            written = [name for name in written if self._differs(name)]
        if written:
            raise HiddenStateError(_advice(global_step, f"wrote to the {listed('parameter', written)}"))

    def check_node(self, global_step: int) -> None:
        """The same, by value too, after a whole virtual node."""
        self.check_forward(global_step)
        if not self._by_value:
            return
        if odd := named_parameters(self._model).keys() ^ self._parameters.keys():
            raise HiddenStateError(_advice(global_step, f"added or removed the {listed('parameter', sorted(odd))}"))
        if written := [name for name in self._parameters if self._differs(name)]:
            raise HiddenStateError(
                _advice(global_step, f"wrote to the {listed('parameter', written)}, through .data or a view")
            )

    def _differs(self, name: str) -> bool:
        parameter = self._parameters[name]
        return parameter._version != self._marks[name][0] or checksum(parameter) != self._sums[name]


def _mark(parameter: Tensor) -> tuple[int, int]:
    return parameter._version, parameter.data_ptr()


def _advice(global_step: int, what: str) -> str:
    return (
        f"the forward of step {global_step} {what}: virtual nodes that run later would start from another model. "
        "Initialise parameters before the Trainer is made, and keep running values in buffers."
    )
