"""What the scripts of this folder train on. Both of a pair import it, so their difference is the port alone."""

import sys
from pathlib import Path
from pydoc_data import topics

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

sys.path.append(str(Path(__file__).parents[1]))

import data
from data import movie_reviews as reviews

__all__ = ["images", "reviews", "tokens"]


def images(*, train: bool) -> TensorDataset:
    """Clothes, or digits where Fashion-MNIST is missing, and what they show."""
    return TensorDataset(*map(torch.from_numpy, data.images(train=train)))


def tokens() -> Tensor:
    """The bytes of Python's own help texts: half a megabyte of English that every machine has."""
    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    return torch.tensor(list(text.encode("ascii", "replace")))
