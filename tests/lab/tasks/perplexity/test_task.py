"""Perplexity in windows of every kind, of models whose losses are known."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from megatape.data.shards.index import load_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.tokenizers.files import stored_tokenizer
from megatape.data.training.token_dataset import TokenDataset
from megatape.hf.exporting.exporter import export
from megatape.hf.loading.load import load_exported
from megatape.hf.loading.loaded_model import LoadedModel
from megatape.lab.tasks.engine.runner import evaluate
from megatape.lab.tasks.perplexity.losses import Prediction
from megatape.lab.tasks.perplexity.results import PerplexityScores
from megatape.lab.tasks.perplexity.task import Perplexity
from megatape.lab.tasks.perplexity.windows import AUTHORS_STRIDE
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.memory_checkpoint import memory_checkpoint
from tests.helpers.processes.command import Command
from tests.helpers.runs.small_run import VOCAB_SIZE

pytestmark = pytest.mark.numerics


def measure(loaded: LoadedModel, data: Path, *settings: Any, **named: Any) -> PerplexityScores:
    return evaluate(Perplexity(data, *settings, **named), loaded)


class Pieces:
    """The tokenizer of the data, as transformers has it."""

    def __init__(self, data: Path) -> None:
        self.own = stored_tokenizer(data, load_index(data).tokenizer.files)

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [*(self.own.begin if add_special_tokens else ()), *self.own.encode(text)]}

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return self.own.decode([token for token in ids if token not in (self.own.bos_id, self.own.eos_id)])


class Ages:
    """A model whose loss is that of position p in the window: log(2 + p mod 7)."""

    device = torch.device("cpu")
    base_model = None

    def __init__(self) -> None:
        self.config = SimpleNamespace(vocab_size=VOCAB_SIZE)
        self.seen: list[Tensor] = []

    def __call__(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
        # A uniform guess over V tokens of which the target is one costs log(V), whatever the target.
        self.seen.append(input_ids)
        ages = 2 + torch.arange(input_ids.shape[1]) % 7
        logits = torch.full((*input_ids.shape, VOCAB_SIZE), -math.inf)
        for position, age in enumerate(ages.tolist()):
            following = torch.roll(input_ids, -1, 1)[:, position]  # of all but the last position, the target
            logits[:, position] = math.log((1 - 1 / age) / (VOCAB_SIZE - 1))
            logits[torch.arange(len(input_ids)), position, following] = -math.log(age)
        return SimpleNamespace(logits=logits)


class Uniform(Ages):
    """A model that knows nothing."""

    def __call__(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
        self.seen.append(input_ids)
        return SimpleNamespace(logits=torch.zeros(*input_ids.shape, VOCAB_SIZE))


@pytest.mark.parametrize(
    ("mode", "stride"), [("disjoint", None), ("sliding", 8), ("sliding", 3), ("sliding", 32), ("authors", None)]
)
def test_uniform_logits_give_the_vocabulary(data_directory: Path, mode: str, stride: int | None) -> None:
    loaded = LoadedModel("a model", Uniform(), Pieces(data_directory))
    result = measure(loaded, data_directory, (32, 64), mode, stride, 1000)
    assert_close([score.perplexity for score in result.scores], [float(VOCAB_SIZE)] * 2, bounds.PERPLEXITY)


def test_a_loss_beyond_the_exponents_of_floats(data_directory: Path) -> None:
    """A model that diverged is measured to the end, and its perplexity is a number that JSON has."""

    class Diverged(Uniform):
        def __call__(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
            found = super().__call__(input_ids, use_cache)
            found.logits[..., 0] = 1000.0
            return found

    result = measure(LoadedModel("a model", Diverged(), Pieces(data_directory)), data_directory, (32,), "disjoint", None, 1000)
    (score,) = result.scores
    assert score.nats > 900 and score.perplexity == math.exp(700)


def test_windows(data_directory: Path) -> None:
    """Which tokens the windows hold, and which losses count, by a plain loop."""
    tokens = TokenDataset(StoredSplit(data_directory, "validation"), 999).tokens(0)
    expected: dict[tuple[str, int], list[tuple[int, int]]] = {}  # (begin, size) of the windows; what counts is below
    for length in (32, 64):
        expected["disjoint", length] = [(begin, length) for begin in range(0, 15 * 64, length)]
        expected["sliding", length] = [(begin, length) for begin in range(64 - length, 1000 - length, 5)]
        expected["authors", length] = [(begin, length - 1) for begin in range(0, 1001 - length, AUTHORS_STRIDE)]
    for mode, stride in (("disjoint", None), ("sliding", 5), ("authors", None)):
        model = Ages()
        result = measure(LoadedModel("a model", model, Pieces(data_directory)), data_directory, (32, 64), mode, stride, 1000)
        seen = [row for batch in model.seen for row in batch.tolist()]
        windows = [window for length in (32, 64) for window in expected[mode, length]]
        assert seen == [tokens[begin : begin + size].tolist() for begin, size in windows]
        for score in result.scores:
            size = expected[mode, score.length][0][1]
            counted = range(size - 5 if mode == "sliding" else 0, size - 1)  # the model does not know the last target
            ages = [math.log(2 + position % 7) for position in counted]
            assert len(score.by_position) == (5 if mode == "sliding" else size)
            assert_close(score.by_position[:-1], ages, bounds.PERPLEXITY)
            # All of a window is drawn at its place: what slides has the positions of its last predictions.
            assert score.positions == [position + 1 for position in counted] + [size]
            assert (score.errors_by_position is None) == (mode == "authors")
            assert score.errors_by_position is None or max(score.errors_by_position[:-1]) < 1e-6  # all windows lose alike
            assert score.tokens == len(expected[mode, score.length]) * len(score.by_position)
            assert (score.nats_per_byte is None) == (mode == "authors")
    assert (
        len(
            {
                score.tokens
                for score in measure(
                    LoadedModel("a model", Uniform(), Pieces(data_directory)), data_directory, (32, 64), "sliding", 5, 1000
                ).scores
            }
        )
        == 1
    )


def test_bytes(data_directory: Path) -> None:
    """Nats per byte times bytes are nats per token times tokens."""
    pieces = Pieces(data_directory)
    loaded = LoadedModel("a model", Uniform(), pieces)
    (score,) = measure(loaded, data_directory, (64,), max_tokens=1000).scores
    tokens = TokenDataset(StoredSplit(data_directory, "validation"), 999).tokens(0)[1 : 15 * 64 + 1]
    num_bytes = len(pieces.decode(tokens.tolist(), skip_special_tokens=True).encode())
    assert score.nats_per_byte is not None
    assert_close([score.nats_per_byte * num_bytes], [math.log(VOCAB_SIZE) * 15 * 64], bounds.PERPLEXITY)


def test_sources_agree(data_directory: Path, tmp_path: Path) -> None:
    """A .bin file and a text file of the same tokens give what the data directory gives."""
    pieces = Pieces(data_directory)
    loaded = LoadedModel("a model", Uniform(), pieces)
    tokens = TokenDataset(StoredSplit(data_directory, "validation"), 999).tokens(0)
    tokens.astype(np.uint16).tofile(tmp_path / "text.bin")
    text = "a text of a few words, again and again. " * 50
    (tmp_path / "text.txt").write_text(text)
    model: Any = loaded.model
    for path, ids in ((data_directory, tokens), (tmp_path / "text.bin", tokens), (tmp_path / "text.txt", None)):
        model.seen.clear()
        measure(loaded, path, (32,), max_tokens=1000)
        ids = np.array(pieces(text)["input_ids"][:1000]) if ids is None else ids
        assert torch.cat(model.seen).flatten().tolist() == ids[: (ids.size - 1) // 32 * 32].tolist()


def test_results_need_predictions_only(data_directory: Path, tmp_path: Path) -> None:
    loaded = LoadedModel("a model", Uniform(), Pieces(data_directory))
    TokenDataset(StoredSplit(data_directory, "validation"), 999).tokens(0).astype(np.uint16).tofile(tmp_path / "text.bin")
    task = Perplexity(tmp_path / "text.bin", (32, 64))
    predictions = [prediction for batch in task.batches(loaded) for prediction in task.run(loaded, batch)]
    (tmp_path / "text.bin").unlink()
    assert task.result(predictions) == measure(loaded, data_directory, (32, 64), max_tokens=1000)


def test_refused(data_directory: Path, tmp_path: Path) -> None:
    loaded = LoadedModel("a model", Uniform(), Pieces(data_directory))
    (tmp_path / "short.txt").write_text("a few words")
    np.full(100, VOCAB_SIZE, np.uint16).tofile(tmp_path / "other.bin")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")

    def refusal(data: Path, *arguments: Any) -> str:
        with pytest.raises(ValueError) as error:
            measure(loaded, data, *arguments)
        return str(error.value)

    assert "48 does not divide 64" in refusal(data_directory, (48, 64))
    assert "stride has no effect with `mode` disjoint" in refusal(data_directory, (32,), "disjoint", 4)
    assert "stride is 0" in refusal(data_directory, (32, 64), "sliding", 0)
    assert "stride is 33" in refusal(data_directory, (32, 64), "sliding", 33)
    assert "and one more than the longest length is needed" in refusal(tmp_path / "short.txt", (256,))
    assert f"has the token id {VOCAB_SIZE}, but a model has" in refusal(tmp_path / "other.bin", (32,))
    assert "is not UTF-8 text" in refusal(tmp_path / "binary.txt", (32,))
    with pytest.raises(FileNotFoundError, match="data .*none.txt: no such file or folder"):
        measure(loaded, tmp_path / "none.txt", (32,))


def test_command(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """From an export, by the command: the perplexity is that of a plain loop over the exported model."""
    checkpoint, _ = memory_checkpoint(data_directory / "tokenizer.model")
    export(checkpoint, tmp_path / "exported")
    status, output, errors = command(
        *("evaluate", "perplexity", tmp_path / "exported", "--data", data_directory, "--lengths", "16,64"),
        *("--max-tokens", "500", "--output", tmp_path / "out"),
    )
    assert status == 0 and "perplexity (disjoint): 16 tokens " in output, errors
    out = tmp_path / "out" / "perplexity" / "exported"
    found = json.loads((out / "results.json").read_text())["details"]["lengths"]
    tokens = torch.from_numpy(TokenDataset(StoredSplit(data_directory, "validation"), 499).tokens(0))
    model = load_exported(tmp_path / "exported").model
    for entry in found:
        losses = []
        for begin in range(0, 7 * 64, entry["length"]):
            window = tokens[begin : begin + entry["length"] + 1][None]
            with torch.no_grad():
                log_probabilities = model(window[:, :-1]).logits.double().log_softmax(-1)
            losses.append(-log_probabilities.gather(2, window[:, 1:, None]).flatten())
        assert_close([entry["perplexity"]], [float(torch.cat(losses).mean().exp())], bounds.PERPLEXITY)
        assert len(entry["errors_by_position"]) == entry["length"] and min(entry["errors_by_position"]) > 0
    assert (out / "perplexity.png").stat().st_size > 1000


def test_errors_by_position_are_those_of_the_windows_means(tmp_path: Path) -> None:
    """Two windows of 128 predictions are two means for each of 64 ranges of two positions."""
    windows = [Prediction(128, begin, 128, 128, [2.0 * (begin + n) for n in range(64)], 1) for begin in (0, 4)]
    (score,) = Perplexity(tmp_path).result(windows).scores
    assert score.positions == [1.5 + 2 * n for n in range(64)]
    assert score.by_position == [n + 2.0 for n in range(64)]
    assert score.errors_by_position == pytest.approx([2.0] * 64)  # sqrt(8) / sqrt(2)
    (alone,) = Perplexity(tmp_path).result(windows[:1]).scores
    assert alone.errors_by_position is None
