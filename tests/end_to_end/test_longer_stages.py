"""Training is extended in stages: each starts from the last checkpoint of the one before, with longer samples."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes.workers import Workers

STEPS = 40


@pytest.mark.slow
def test_stages(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """A run goes from 32 to 128 tokens as in docs/lora_and_long_context.md. Two ranks share each sample of its last stage.

    Fails if a stage does not begin with the weights of the one before: its first loss would be that of a new model.
    """
    raw_config["training"] |= {"steps": STEPS}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw_config))
    first: dict[int, float] = {}
    changes: list[str] = []
    for stage, ranks in ((32, 1), (64, 1), (128, 2)):
        folder = tmp_path / str(stage)
        changes += [f"run.directory={folder}", f"data.sequence_length={stage}", f"model.max_positions={stage}"]
        changes += [f"model.rotary_base={10_000 * stage // 32}", f"training.global_batch_size={256 // stage}"]
        changes += ["training.micro_batch_size=2", f"parallel.sp={ranks}"]
        words = [word for change in changes for word in ("--set", change)]
        with Workers(["pretrain", "--config", str(path), *words], ranks, tmp_path / f"workers-{stage}") as workers:
            assert workers.statuses() == [0] * ranks, workers.logs()
        losses = [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]
        first[stage] = losses[0]
        changes.append(f"training.init_from={folder}/checkpoints/step-{STEPS:08d}")
    assert first[64] < first[32] - 0.5 and first[128] < first[32] - 0.5, first
