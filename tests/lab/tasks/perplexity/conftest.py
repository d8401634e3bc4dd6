"""Models whose losses are known, with the tokenizer of the data, and tokens of the data."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.hf.loading.loaded_model import LoadedModel
from tests.helpers.models.known_losses import Pieces, Recorder


@pytest.fixture
def load(data_directory: Path) -> Callable[[Recorder], LoadedModel]:
    """Return a function: load(model) adds the tokenizer of the data."""

    def load_model(model: Recorder) -> LoadedModel:
        return LoadedModel("a model", model, Pieces(data_directory))

    return load_model


@pytest.fixture
def tokens(data_directory: Path) -> np.ndarray:
    """Return the first 1000 tokens of the validation split."""
    return TokenDataset(StoredSplit(data_directory, "validation"), 999).tokens(0)
