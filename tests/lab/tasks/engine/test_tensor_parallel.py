"""Models that the training code runs, whole or divided over ranks, against their exports."""

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
    folder = tmp_path_factory.mktemp("models")
    for encoding in ("tape", "fire", "rope"):
        export(memory_checkpoint(data_directory / "tokenizer.model", encoding=encoding)[0], folder / encoding)
    return folder


@pytest.mark.parametrize("encoding", ["tape", "fire", "rope"])
def test_whole(models: Path, encoding: str) -> None:
    """Logits and greedy continuations are those of the export; one text ends early."""
    tokens = torch.randint(3, VOCAB_SIZE - 30, (3, 25), generator=torch.Generator().manual_seed(0))
    expected = load_exported(models / encoding)
    with load_tensor_parallel(models / encoding, SINGLE) as model:
        assert (model.vocab_size, model.max_positions) == (expected.vocab_size, expected.max_positions)
        assert_close(model.logits(tokens), expected.logits(tokens), bounds.EXPORTED)
        prompts = tokens[:, :12].tolist()
        found = model.continuations(prompts, 9)
        assert found == expected.continuations(prompts, 9) and len(found[0]) == 9
        model.end_ids = {found[0][3]}
        model.padding_id = 1
        expected.model.generation_config.eos_token_id = found[0][3]
        expected.model.generation_config.pad_token_id = 1
        assert model.continuations(prompts, 9) == expected.continuations(prompts, 9) != found


def test_two_tensor_parallel_ranks(models: Path, command: Command, data_directory: Path, tmp_path: Path) -> None:
    """Sequences of odd length: the perplexity of the export."""
    words = ["evaluate", "perplexity", str(models / "tape"), "--data", str(data_directory), "--lengths", "31,62"]
    words += ["--max-tokens", "1000", "--output"]
    assert command(*words, tmp_path / "export")[0] == 0
    with Workers(
        [*words, str(tmp_path / "divided"), "--tp", "2"], 2, tmp_path / "workers", imports=WITH_TRANSFORMERS
    ) as workers:
        assert workers.statuses() == [0] * 2, workers.logs()
    values = []
    for name in ("export", "divided"):
        found = json.loads((tmp_path / name / "perplexity" / "tape" / "results.json").read_text())
        assert (found["model"]["training_code"], found["model"]["tp"]) == ((False, 1) if name == "export" else (True, 2))
        values.append([measure["value"] for measure in found["measures"]])
    assert_close(values[1], values[0], bounds.EXPORTED)
    status, _, errors = command(*words, tmp_path / "none", "--tp", "2")
    assert status == 2 and "--tp 2: the launcher started 1 process:" in errors


def test_refused() -> None:
    with pytest.raises(ValueError, match="tp 3: num_heads of a model is 4"):
        check_divisible(ModelConfig(**SHAPE), 3, "a model")
    with pytest.raises(ValueError, match="are drawn by a seed in its export: leave out `tp` and `training_code`"):
        check_divisible(ModelConfig(**SHAPE | {"encoding": "randpe"}), 1, "a model")


def test_a_window_limits_the_text(data_directory: Path, tmp_path: Path) -> None:
    """Beyond it the training code attends to more tokens than the export does."""
    shape: dict[str, Any] = {"encoding": "rope", "sliding_window": 64, "max_positions": 128}
    export(memory_checkpoint(data_directory / "tokenizer.model", **shape)[0], tmp_path / "windowed")
    with load_tensor_parallel(tmp_path / "windowed", SINGLE) as model:
        assert (model.max_positions, load_exported(tmp_path / "windowed").max_positions) == (64, 128)
