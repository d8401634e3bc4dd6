"""Evaluating a run of `compare`: perplexity by length, addition."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from megatape.config import ModelConfig, ScalingConfig, parse_config
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.synthetic.addition_problems import AdditionTask, longest_document, prepare_addition
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.data.training.selection import select_samples
from megatape.hf.loading.loaded_model import LoadedModel
from megatape.lab.study.comparison import measure
from megatape.lab.tasks.addition import AdditionGrid
from megatape.lab.tasks.perplexity import validation, windows
from megatape.lab.tasks.perplexity.validation import evaluate_perplexity
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.runs.small_run import VOCAB_SIZE


class Unigrams:
    """Model that predicts every token by its log frequency, whatever comes before, and records its inputs."""

    device = torch.device("cpu")
    base_model = None

    def __init__(self, log_frequencies: Tensor) -> None:
        self.logits = log_frequencies
        self.inputs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
        self.inputs.append(input_ids)
        return SimpleNamespace(logits=self.logits.expand(*input_ids.shape, -1))


@pytest.mark.numerics
@pytest.mark.parametrize("length", [64, 32, 16])
@pytest.mark.parametrize("max_tokens", [2**15, 300])
def test_every_length_predicts_the_same_text(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch, max_tokens: int, length: int
) -> None:
    """The text for the longest sequences is used, chosen from the whole split."""
    monkeypatch.setattr(validation, "MAX_TOKENS", max_tokens)
    monkeypatch.setattr(windows, "BATCH_TOKENS", 96)
    longest = 64
    dataset = TokenDataset(StoredSplit(data_directory, "validation"), longest)
    selected = select_samples(dataset.num_samples, max_tokens // longest, "spread")
    assert selected[-1] > dataset.num_samples / 2
    sequences = np.stack([dataset.tokens(index) for index in selected])
    logits = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    log_frequencies = torch.log_softmax(logits, 0)
    expected = math.exp(-log_frequencies.double()[sequences[:, 1:]].mean())
    model = Unigrams(log_frequencies)

    perplexity = evaluate_perplexity(LoadedModel("unigrams", model, None), data_directory, length, longest)

    assert_close([perplexity], [expected], bounds.PERPLEXITY)
    assert np.array_equal(torch.cat(model.inputs).flatten().numpy(), sequences[:, :-1].flatten())
    assert {batch.shape[1] for batch in model.inputs} == {length}


class LoadedCheckpoint(NamedTuple):
    """Arguments to `load_trained`."""

    checkpoint: Path
    scaling: ScalingConfig | None


def test_addition_uses_the_scaling(raw_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training has 2 digits, which are 11 tokens, and the test has 4 digits, which are 16 tokens."""
    data = tmp_path / "addition"
    prepare_addition(AdditionTask(digits=2, per_cell=20, seed=3), data, lambda tokens: None)
    raw_config["data"] = {
        "path": str(data),
        "samples": "documents",
        "sequence_length": longest_document(2),
        "prompt_end": "=",
    }
    config = parse_config(raw_config, "test")
    loaded: list[LoadedCheckpoint] = []

    @contextmanager
    def load(checkpoint: Path, model: ModelConfig) -> Iterator[None]:
        loaded.append(LoadedCheckpoint(checkpoint, model.scaling))
        yield

    cells = [[1] * 4] * 4
    monkeypatch.setattr(measure, "load_trained", load)
    monkeypatch.setattr(measure, "evaluate", lambda task, loaded: AdditionGrid(2, cells, cells))

    measure.measure_addition(config, tmp_path, None)
    measure.measure_addition(config, tmp_path, "linear")

    assert loaded == [
        LoadedCheckpoint(tmp_path, None),
        LoadedCheckpoint(tmp_path, ScalingConfig(kind="linear", factor=16 / 11)),
    ]
