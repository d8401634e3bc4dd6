"""Loss by position in the windows of a validation split."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.data.training.selection import select_samples
from megatape.hf.loading.loaded_model import LoadedModel
from megatape.lab.tasks.perplexity.by_position import evaluate_by_position, longest_window
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.runs.small_run import VOCAB_SIZE

# Tokens of a training sample, and of a window.
TRAINED = 16
LONGEST = 128


class PositionModel:
    """Model whose loss depends on position and target alone: its logits are those of a token times the position."""

    device = torch.device("cpu")
    base_model = None

    def __init__(self) -> None:
        self.logits = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) / 100

    def __call__(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
        positions = torch.arange(1, input_ids.shape[1] + 1)
        logits = positions[:, None] * self.logits
        return SimpleNamespace(logits=logits.expand(len(input_ids), -1, -1))

    def losses(self, targets: np.ndarray) -> np.ndarray:
        """Return the loss of each target in float64, [windows, positions]."""
        losses = []
        for index in range(targets.shape[1]):
            log_shares = torch.log_softmax((index + 1) * self.logits.double(), 0)
            losses.append(-log_shares.numpy()[targets[:, index]])
        return np.stack(losses, axis=1)


@pytest.mark.numerics
def test_losses_equal_the_model_s(data_directory: Path) -> None:
    """A range has the mean loss at its positions in windows from the whole split."""
    model = PositionModel()
    dataset = TokenDataset(StoredSplit(data_directory, "validation"), LONGEST)
    sequences = []
    for index in select_samples(dataset.num_samples, 2**15 // LONGEST, "spread"):
        sequences.append(dataset.tokens(index))
    losses = model.losses(np.stack(sequences)[:, 1:]).mean(axis=0)

    by_position = evaluate_by_position(LoadedModel("model", model, None), data_directory, TRAINED, LONGEST)

    assert list(by_position) == ["1-4", "5-8", "9-16", "17-32", "33-64", "65-128"]
    expected = [part.mean() for part in np.split(losses, [4, 8, 16, 32, 64])]
    assert_close(list(by_position.values()), expected, bounds.PERPLEXITY)


@pytest.mark.parametrize(
    ("trained", "max_positions", "expected"),
    [
        pytest.param(16, 1000, 128, id="eight times"),
        pytest.param(16, 127, 64, id="positions of the model"),
        pytest.param(16, 16, 16, id="no more than in training"),
    ],
)
def test_longest_window(data_directory: Path, trained: int, max_positions: int, expected: int) -> None:
    assert longest_window(data_directory, trained, max_positions) == expected


def test_longest_window_of_a_short_split(data_directory: Path) -> None:
    """A window and the target of its last token fit into the split."""
    num_tokens = StoredSplit(data_directory, "validation").num_tokens

    fitting = (num_tokens - 1) // 2
    too_long = -(-num_tokens // 2)
    assert longest_window(data_directory, fitting, 2**20) == 2 * fitting
    assert longest_window(data_directory, too_long, 2**20) == too_long
