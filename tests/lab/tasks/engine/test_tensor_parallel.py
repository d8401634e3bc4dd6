"""Models run by the training code, on one rank or distributed over several, against their exports."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.config import ModelConfig
from megatape.distributed.mesh import SINGLE
from megatape.hf.exporting.exporter import export
from megatape.hf.loading.load import load_exported
from megatape.lab.tasks.engine.tensor_parallel import check_divisible, load_tensor_parallel
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.memory_checkpoint import VOCAB_SIZE, memory_checkpoint
from tests.helpers.models.small_models import SHAPE
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import WITH_TRANSFORMERS, Workers


@pytest.fixture(scope="module")
def models(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of exported models by encoding."""
    folder = tmp_path_factory.mktemp("models")
    for encoding in ("tape", "fire", "rope"):
        checkpoint, _ = memory_checkpoint(data_directory / "tokenizer.model", encoding=encoding)
        export(checkpoint, folder / encoding)
    return folder


@pytest.mark.numerics
@pytest.mark.parametrize("encoding", ["tape", "fire", "rope"])
def test_one_rank_equals_the_export(models: Path, encoding: str) -> None:
    tokens = torch.randint(3, VOCAB_SIZE - 30, (3, 25), generator=torch.Generator().manual_seed(0))
    prompts = tokens[:, :12].tolist()
    exported = load_exported(models / encoding)

    with load_tensor_parallel(models / encoding, SINGLE) as model:
        assert model.vocab_size == exported.vocab_size
        assert model.max_positions == exported.max_positions
        assert_close(model.logits(tokens), exported.logits(tokens), bounds.EXPORTED)
        continuations = model.continuations(prompts, 9)
        assert continuations == exported.continuations(prompts, 9)
        assert len(continuations[0]) == 9

        # One text ends early.
        end = continuations[0][3]
        model.end_ids = {end}
        model.padding_id = 1
        exported.model.generation_config.eos_token_id = end
        exported.model.generation_config.pad_token_id = 1
        ended = model.continuations(prompts, 9)
        assert ended == exported.continuations(prompts, 9)
        assert ended != continuations


def test_two_tensor_parallel_ranks_have_the_perplexity_of_the_export(
    models: Path, command: Command, data_directory: Path, tmp_path: Path
) -> None:
    """Sequences have odd lengths."""
    words = ["evaluate", "perplexity", str(models / "tape"), "--data", str(data_directory), "--lengths", "31,62"]
    words += ["--max-tokens", "1000", "--output"]
    status, _, errors = command(*words, tmp_path / "export")
    assert status == 0, errors

    parallel_words = [*words, str(tmp_path / "parallel"), "--tp", "2"]
    with Workers(parallel_words, 2, tmp_path / "workers", imports=WITH_TRANSFORMERS) as workers:
        assert workers.statuses() == [0] * 2, workers.logs()

    expected = json.loads((tmp_path / "export" / "perplexity" / "tape" / "results.json").read_text())
    results = json.loads((tmp_path / "parallel" / "perplexity" / "tape" / "results.json").read_text())
    assert expected["model"]["training_code"] is False
    assert expected["model"]["tp"] == 1
    assert results["model"]["training_code"] is True
    assert results["model"]["tp"] == 2
    assert_close(_values(results), _values(expected), bounds.EXPORTED)


def _values(results: dict[str, Any]) -> list[float]:
    return [measure["value"] for measure in results["measures"]]


def test_tensor_parallel_evaluation_in_one_process_is_refused(
    models: Path, command: Command, data_directory: Path, tmp_path: Path
) -> None:
    words = ("evaluate", "perplexity", models / "tape", "--data", data_directory, "--lengths", "31,62")

    status, _, errors = command(*words, "--output", tmp_path / "none", "--tp", "2")

    assert status == 2
    assert "--tp 2: the launcher started 1 process:" in errors


def test_heads_that_cannot_be_distributed_are_refused() -> None:
    with pytest.raises(ValueError, match="tp 3: num_heads of a model is 4"):
        check_divisible(ModelConfig(**SHAPE), 3, "a model")


def test_positions_drawn_by_the_export_are_refused() -> None:
    with pytest.raises(ValueError, match="are drawn by a seed in its export: leave out `tp` and `training_code`"):
        check_divisible(ModelConfig(**SHAPE | {"encoding": "randpe"}), 1, "a model")


def test_a_window_does_not_limit_the_text(data_directory: Path, tmp_path: Path) -> None:
    """Exported and tensor-parallel models both compute the window, and accept longer texts."""
    shape: dict[str, Any] = {"encoding": "rope", "sliding_window": 8, "max_positions": 128}
    checkpoint, _ = memory_checkpoint(data_directory / "tokenizer.model", **shape)
    export(checkpoint, tmp_path / "windowed")
    tokens = torch.arange(3, 43)[None]

    exported = load_exported(tmp_path / "windowed")
    with load_tensor_parallel(tmp_path / "windowed", SINGLE) as model, torch.no_grad():
        assert model.max_positions == exported.max_positions == 128
        assert_close(model.model(tokens), exported.model(tokens).logits, bounds.LOGITS)
