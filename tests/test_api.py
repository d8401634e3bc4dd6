"""Functions of the package for use from Python: `megatape.load` and `megatape.new_model`."""

from pathlib import Path
from typing import Any

import pytest
import torch

import megatape
from megatape.checkpoint.load.reader import CheckpointReader
from megatape.errors import UserError
from megatape.hf.language_model import LanguageModel
from tests.helpers.processes.without_torch import assert_not_imported
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.small_run import small_config
from tests.helpers.runs.training_cases import TRAIN_CASES


@pytest.fixture(scope="module")
def config(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Configuration of one step that changes nothing, because its learning rate is too small."""
    raw = small_config(data_directory, tmp_path_factory.mktemp("api") / "runs")
    raw["training"]["steps"] = 1
    raw["optimizer"]["learning_rate"] = 1e-30
    return raw


@pytest.fixture(scope="module")
def checkpoint(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    payload = {"config": config, "cases": [{"name": "run"}]}
    results = run_workers(TRAIN_CASES, 1, payload, tmp_path_factory.mktemp("workers"))
    assert "error" not in results[0][0]
    return Path(config["run"]["directory"]) / "run/checkpoints/step-00000001"


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> LanguageModel:
    return megatape.load(checkpoint)


def test_import_needs_no_torch() -> None:
    assert_not_imported("torch", ["import megatape", "megatape.load", "megatape.new_model"])


def test_continuations_are_text_after_the_prompt(model: LanguageModel) -> None:
    first = model.generate("the fox", max_new_tokens=4)
    both = model.generate("the fox", max_new_tokens=8)
    assert first
    assert both.startswith(first)


def test_an_empty_prompt_is_the_begin_token(model: LanguageModel) -> None:
    """The temporary export of the checkpoint is gone by then, and its tokenizer must not be."""
    assert model.generate("", max_new_tokens=4)
    assert model.encode("").shape == (1, 1)


def test_seed_decides_samples(model: LanguageModel) -> None:
    sample = model.generate("the", temperature=5.0, seed=1)
    assert model.generate("the", temperature=5.0, seed=1) == sample
    assert model.generate("the", temperature=5.0, seed=2) != sample


def test_a_batch_continues_each_prompt(model: LanguageModel) -> None:
    """Prompts of different lengths are padded, which must not change the continuations."""
    prompts = ["a", "the quick brown fox jumps"]
    assert model.generate_all(prompts) == [model.generate(prompt) for prompt in prompts]
    assert model.generate_all([]) == []


def test_logits_are_those_of_the_likeliest_continuation(model: LanguageModel) -> None:
    tokens = model.encode("the fox")
    logits = model(tokens)
    likeliest = logits[0, -1].argmax()
    assert logits.shape == (1, tokens.shape[1], model.model.config.vocab_size)
    assert model.decode(likeliest[None]).strip() == model.generate("the fox", max_new_tokens=1).strip()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heat": 1.0}, "heat is not a sampling option: choose among .*temperature"),
        ({"samples": 2}, "samples is not a sampling option"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
    ],
)
def test_wrong_options_are_named(model: LanguageModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        model.generate("a", **options)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        megatape.load(tmp_path / "nowhere")


def test_new_model_has_the_initial_weights_of_training(checkpoint: Path, config: dict[str, Any]) -> None:
    """The checkpoint was trained with a tiny learning rate, so its weights are still the initial ones."""
    new = megatape.new_model(config["model"], seed=1234)
    reader = CheckpointReader(checkpoint)
    for name, weight in new.named_parameters():
        torch.testing.assert_close(reader.tensor(name), weight.detach(), rtol=0, atol=1e-20)


def test_new_model_reads_a_file_and_changes() -> None:
    file = Path(__file__).parents[1] / "configs/tape_tiny.json"
    model = megatape.new_model(file, encoding="rope", num_layers=2)
    assert model.config.encoding == "rope"
    assert len(model.blocks) == 2
    with pytest.raises(UserError, match="encoding"):
        megatape.new_model(file, encoding="roep")


def test_changes_of_the_shape_reach_derived_sizes() -> None:
    """The file leaves out the number of key/value heads and the head size, which follow from the changed values."""
    file = Path(__file__).parents[1] / "configs/tape_tiny.json"
    fewer_heads = megatape.new_model(file, num_heads=2).config
    assert fewer_heads.num_kv_heads == 2
    assert fewer_heads.head_dim == 64
    assert megatape.new_model(file, hidden_size=256).config.head_dim == 64


def test_unknown_changes_suggest_a_name() -> None:
    file = Path(__file__).parents[1] / "configs/tape_tiny.json"
    with pytest.raises(UserError, match="did you mean num_layers"):
        megatape.new_model(file, num_layer=2)


def test_positions_are_counted_from_zero_by_default() -> None:
    file = Path(__file__).parents[1] / "configs/tape_tiny.json"
    model = megatape.new_model(file)
    tokens = torch.arange(24).reshape(2, 12)
    positions = torch.arange(12).expand(2, 12)
    assert torch.equal(model(tokens), model(tokens, positions))
