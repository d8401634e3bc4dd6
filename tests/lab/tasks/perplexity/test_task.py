"""Perplexity in windows of every kind, of models whose losses are known."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from megatape.hf.exporting.exporter import export
from megatape.hf.loading.load import load_exported
from megatape.hf.loading.loaded_model import LoadedModel
from megatape.lab.tasks.perplexity.losses import Prediction
from megatape.lab.tasks.perplexity.task import Perplexity
from megatape.lab.tasks.perplexity.windows import AUTHORS_STRIDE
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.known_losses import Ages, Diverged, Mode, Recorder, Uniform, known_loss, measure
from tests.helpers.models.memory_checkpoint import memory_checkpoint
from tests.helpers.processes.command import Command
from tests.helpers.runs.small_run import VOCAB_SIZE


@pytest.mark.numerics
@pytest.mark.parametrize(
    ("mode", "stride"),
    [
        ("disjoint", None),
        ("sliding", 8),
        ("sliding", 3),
        ("sliding", 32),
        ("authors", None),
    ],
)
def test_uniform_logits_give_the_vocabulary(
    load: Callable[[Recorder], LoadedModel], data_directory: Path, mode: Mode, stride: int | None
) -> None:
    result = measure(load(Uniform()), data_directory, (32, 64), mode, stride, 1000)

    perplexities = [score.perplexity for score in result.scores]
    assert_close(perplexities, [float(VOCAB_SIZE)] * 2, bounds.PERPLEXITY)


def test_loss_beyond_the_exponents_of_floats(load: Callable[[Recorder], LoadedModel], data_directory: Path) -> None:
    """A model that diverged is measured to the end, and its perplexity is a number that JSON has."""
    (score,) = measure(load(Diverged()), data_directory, (32,), max_tokens=1000).scores

    assert score.nats > 900
    assert score.perplexity == math.exp(700)


class Windows(NamedTuple):
    """Windows of one length over 1000 tokens, in an evaluation of the lengths 32 and 64.

    Attributes:
        begins: First tokens.
        num_inputs: Input tokens of each window.
        scored: Scored positions of each window.
    """

    begins: range
    num_inputs: int
    scored: range


def disjoint_windows(length: int) -> Windows:
    return Windows(range(0, 15 * 64, length), length, range(length))


def sliding_windows(length: int) -> Windows:
    """Return windows with a stride of 5. All lengths predict the same tokens."""
    return Windows(range(64 - length, 1000 - length, 5), length, range(length - 5, length))


def authors_windows(length: int) -> Windows:
    return Windows(range(0, 1001 - length, AUTHORS_STRIDE), length - 1, range(length - 1))


class ModeCase(NamedTuple):
    """Mode of windows.

    Attributes:
        windows: Returns the expected windows of a length.
    """

    mode: Mode
    stride: int | None
    windows: Callable[[int], Windows]


@pytest.fixture(
    params=[
        ModeCase("disjoint", None, disjoint_windows),
        ModeCase("sliding", 5, sliding_windows),
        ModeCase("authors", None, authors_windows),
    ],
    ids=lambda case: case.mode,
)
def case(request: pytest.FixtureRequest) -> ModeCase:
    mode_case: ModeCase = request.param
    return mode_case


def test_inputs_of_the_windows(
    load: Callable[[Recorder], LoadedModel], data_directory: Path, tokens: np.ndarray, case: ModeCase
) -> None:
    model = Ages()
    expected = []
    for length in (32, 64):
        windows = case.windows(length)
        for begin in windows.begins:
            expected.append(tokens[begin : begin + windows.num_inputs].tolist())

    measure(load(model), data_directory, (32, 64), case.mode, case.stride, 1000)

    assert model.sequences() == expected


@pytest.mark.numerics
def test_losses_of_the_windows(load: Callable[[Recorder], LoadedModel], data_directory: Path, case: ModeCase) -> None:
    """All of a window is drawn at its place: a window that slides has the positions of its last predictions."""
    result = measure(load(Ages()), data_directory, (32, 64), case.mode, case.stride, 1000)

    assert [score.length for score in result.scores] == [32, 64]
    for score in result.scores:
        windows = case.windows(score.length)
        # The model does not know the last target.
        expected = [known_loss(position) for position in windows.scored[:-1]]
        assert_close(score.by_position[:-1], expected, bounds.PERPLEXITY)
        assert score.positions == [position + 1 for position in windows.scored]
        assert score.tokens == len(windows.begins) * len(windows.scored)


@pytest.mark.parametrize(("mode", "stride"), [("disjoint", None), ("sliding", 5)])
def test_standard_errors_by_position(
    load: Callable[[Recorder], LoadedModel], data_directory: Path, mode: Mode, stride: int | None
) -> None:
    """All windows lose alike, except for the last target, which the model does not know."""
    result = measure(load(Ages()), data_directory, (32, 64), mode, stride, 1000)

    for score in result.scores:
        assert score.errors_by_position is not None
        assert max(score.errors_by_position[:-1]) < 1e-6
        assert score.nats_per_byte is not None


def test_overlapping_windows_have_no_standard_error(load: Callable[[Recorder], LoadedModel], data_directory: Path) -> None:
    result = measure(load(Ages()), data_directory, (32, 64), "authors", None, 1000)

    for score in result.scores:
        assert score.errors_by_position is None
        assert score.nats_per_byte is None


def test_sliding_windows_score_the_same_number_of_tokens_at_every_length(
    load: Callable[[Recorder], LoadedModel], data_directory: Path
) -> None:
    shorter, longer = measure(load(Uniform()), data_directory, (32, 64), "sliding", 5, 1000).scores

    assert shorter.tokens == longer.tokens


@pytest.mark.numerics
def test_nats_per_byte_times_bytes_are_nats_per_token_times_tokens(
    load: Callable[[Recorder], LoadedModel], data_directory: Path, tokens: np.ndarray
) -> None:
    loaded = load(Uniform())
    text = loaded.tokenizer.decode(tokens[1 : 15 * 64 + 1].tolist(), skip_special_tokens=True)

    (score,) = measure(loaded, data_directory, (64,), max_tokens=1000).scores

    assert score.nats_per_byte is not None
    assert_close([score.nats_per_byte * len(text.encode())], [math.log(VOCAB_SIZE) * 15 * 64], bounds.PERPLEXITY)


def test_results_need_predictions_only(
    load: Callable[[Recorder], LoadedModel], data_directory: Path, tokens: np.ndarray, tmp_path: Path
) -> None:
    """The text may be gone."""
    loaded = load(Uniform())
    text = tmp_path / "text.bin"
    tokens.astype(np.uint16).tofile(text)
    task = Perplexity(text, (32, 64))
    predictions = []
    for batch in task.batches(loaded):
        predictions += task.run(loaded, batch)
    text.unlink()

    assert task.result(predictions) == measure(loaded, data_directory, (32, 64), max_tokens=1000)


class Refusal(NamedTuple):
    """Settings that are refused."""

    message: str
    lengths: tuple[int, ...]
    mode: Mode = "disjoint"
    stride: int | None = None


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal("48 does not divide 64", (48, 64)),
        Refusal("stride has no effect with `mode` disjoint", (32,), "disjoint", 4),
        Refusal("stride is 0", (32, 64), "sliding", 0),
        Refusal("stride is 33", (32, 64), "sliding", 33),
    ],
    ids=lambda refusal: refusal.message,
)
def test_bad_settings_are_refused(load: Callable[[Recorder], LoadedModel], data_directory: Path, refusal: Refusal) -> None:
    with pytest.raises(ValueError) as error:
        measure(load(Uniform()), data_directory, refusal.lengths, refusal.mode, refusal.stride)
    assert refusal.message in str(error.value)


@torch.no_grad()
def plain_perplexity(model: Any, tokens: Tensor, length: int) -> float:
    """Return the perplexity in disjoint windows over the first 7 * 64 tokens, by a plain loop."""
    losses = []
    for begin in range(0, 7 * 64, length):
        window = tokens[begin : begin + length + 1][None]
        log_probabilities = model(window[:, :-1]).logits.double().log_softmax(-1)
        losses.append(-log_probabilities.gather(2, window[:, 1:, None]).flatten())
    return float(torch.cat(losses).mean().exp())


@pytest.mark.numerics
def test_command_equals_a_plain_loop_over_the_export(
    command: Command, data_directory: Path, tokens: np.ndarray, tmp_path: Path
) -> None:
    exported = tmp_path / "exported"
    checkpoint, _ = memory_checkpoint(data_directory / "tokenizer.model")
    export(checkpoint, exported)
    model = load_exported(exported).model

    words = ("evaluate", "perplexity", exported, "--data", data_directory, "--lengths", "16,64", "--max-tokens", "500")
    status, output, errors = command(*words, "--output", tmp_path / "out")

    assert status == 0, errors
    assert "perplexity (disjoint): 16 tokens " in output
    folder = tmp_path / "out" / "perplexity" / "exported"
    assert (folder / "perplexity.png").stat().st_size > 1000
    entries = json.loads((folder / "results.json").read_text())["details"]["lengths"]
    assert [entry["length"] for entry in entries] == [16, 64]
    for entry in entries:
        expected = plain_perplexity(model, torch.from_numpy(tokens[:500]), entry["length"])
        assert_close([entry["perplexity"]], [expected], bounds.PERPLEXITY)
        assert len(entry["errors_by_position"]) == entry["length"]
        assert min(entry["errors_by_position"]) > 0


def predicted_window(begin: int) -> Prediction:
    """Return a window of 128 predictions, whose losses in 64 ranges of two positions rise by 2."""
    return Prediction(128, begin, 128, 128, [2.0 * (begin + number) for number in range(64)], 1)


def test_errors_by_position_are_of_the_windows_means(tmp_path: Path) -> None:
    """Two windows have two means in each of the 64 ranges. They differ by 8, so the error is sqrt(8) / sqrt(2)."""
    (score,) = Perplexity(tmp_path).result([predicted_window(0), predicted_window(4)]).scores

    assert score.positions == [1.5 + 2 * number for number in range(64)]
    assert score.by_position == [number + 2.0 for number in range(64)]
    assert score.errors_by_position == pytest.approx([2.0] * 64)


def test_one_window_has_no_standard_error(tmp_path: Path) -> None:
    (score,) = Perplexity(tmp_path).result([predicted_window(0)]).scores

    assert score.errors_by_position is None
