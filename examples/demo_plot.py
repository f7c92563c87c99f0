"""The picture of `make demo`: one panel for each system, one curve for each number of devices."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import matplotlib

matplotlib.use("Agg")  # a file, not a window

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator


class Run(Protocol):
    """What of a run is drawn."""

    system: str
    devices: int
    batch_size: int
    accuracy: float

    @property
    def epoch_losses(self) -> list[float]: ...


# The first curve is wide and pale, so that one that lies exactly on it can still be seen.
STYLES = (
    {"color": "#9ecae1", "linewidth": 7, "solid_capstyle": "round"},
    {"color": "#08519c", "linewidth": 1.8, "marker": "o", "markersize": 4},
)
PLAIN_STYLES = (
    {"color": "#e6550d", "linewidth": 1.8, "marker": "s", "markersize": 4},
    {"color": "#756bb1", "linewidth": 1.8, "marker": "o", "markersize": 4},
)


def draw(runs: Sequence[Run], path: Path) -> None:
    """Write the loss curves of *runs*, two of each system, to *path*."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.4), sharey=True, layout="constrained")
    _panel(left, runs[:2], STYLES, "VirtualFlow: the batch stays, and so does every bit")
    _panel(right, runs[2:], PLAIN_STYLES, "Plain PyTorch: the batch follows the devices")
    left.set_ylabel("training loss, mean of the epoch")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _panel(axes: Axes, runs: Sequence[Run], styles: Sequence[dict[str, object]], title: str) -> None:
    for run, style in zip(runs, styles, strict=True):
        devices = "1 device" if run.devices == 1 else f"{run.devices} devices"
        label = f"{devices}, batch {run.batch_size}: accuracy {run.accuracy:.1%}"
        axes.plot(range(1, len(run.epoch_losses) + 1), run.epoch_losses, label=label, **style)
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.grid(which="both", alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower left")
