"""Extending training in stages: each starts from the last checkpoint before it, with longer samples."""

import json
from pathlib import Path
from typing import Any

import pytest

from megatape.run_folder import RunFolder
from tests.helpers.processes.workers import Workers
from tests.helpers.runs.run_folders import read_entries

STEPS = 40


@pytest.mark.slow
def test_each_stage_starts_from_the_one_before(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """A run grows from 32 to 128 tokens as in docs/lora_and_long_context.md. In its last stage, two ranks share each sample.

    Fails if a stage does not begin with the weights from the one before: its first loss would be a new model's.
    """
    raw_config["training"] |= {"steps": STEPS}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw_config))
    first_losses: dict[int, float] = {}
    origin: Path | None = None
    for length, num_ranks in ((32, 1), (64, 1), (128, 2)):
        folder = RunFolder(tmp_path / str(length))
        settings = [
            f"run.directory={folder.directory}",
            f"data.sequence_length={length}",
            f"model.max_positions={length}",
            f"model.rotary_base={10_000 * length // 32}",
            f"training.global_batch_size={256 // length}",
            "training.micro_batch_size=2",
            f"parallel.sp={num_ranks}",
        ]
        if origin is not None:
            settings.append(f"training.init_from={origin}")
        words = ["pretrain", "--config", str(path)]
        for setting in settings:
            words += ["--set", setting]
        with Workers(words, num_ranks, tmp_path / f"workers-{length}") as workers:
            assert workers.statuses() == [0] * num_ranks, workers.logs()
        first_losses[length] = read_entries(folder.metrics)[0]["loss"]
        origin = folder.checkpoint(STEPS)

    assert first_losses[64] < first_losses[32] - 0.5
    assert first_losses[128] < first_losses[32] - 0.5
