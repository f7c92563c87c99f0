"""transformers on virtual nodes: ``from virtualflow.transformers import Trainer`` takes the place of transformers' own.

Nothing else of this project imports this folder. What it builds on is in ``train``: ``Trainer.enter``, ``open_pass``,
``gradients``. Start with ``hf_trainer``.
"""

try:
    from virtualflow.transformers.hf_trainer import Seq2SeqTrainer, Trainer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"virtualflow.transformers needs {error.name}: pip install 'virtualflow[transformers]'", name=error.name
    ) from error

__all__ = ["Seq2SeqTrainer", "Trainer"]
