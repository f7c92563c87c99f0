"""A job's numbers in the tools that people look at: ``Trainer(loggers=[vf.loggers.TensorBoard("runs")])``.

One adapter follows the event stream, on the lead worker only; a new lead continues the same run. Here live the
adapter (``adapter``), what an event says in numbers (``scalars``), and one small module for each tool. What the events
are is in ``events``. Start with ``adapter``.
"""

from virtualflow.loggers.adapter import RunLogger, Tool
from virtualflow.loggers.mlflow_runs import MLflow
from virtualflow.loggers.tensorboard_files import TensorBoard
from virtualflow.loggers.wandb_runs import WandB

__all__ = ["MLflow", "RunLogger", "TensorBoard", "Tool", "WandB"]
