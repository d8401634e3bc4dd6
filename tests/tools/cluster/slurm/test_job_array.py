"""Runs of a job, and their configurations."""

import json
from pathlib import Path
from typing import Any

import pytest

from megatape.errors import UserError
from megatape.tools.cluster.slurm.job_array import plan_array
from megatape.tools.cluster.slurm.job_script import render_job
from tests.helpers.cluster.jobs import new_job

SNAPSHOT = Path("/shared/run/submissions/now")


def test_study(raw_config: dict[str, Any], tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    lines = tmp_path / "study"
    config.write_text(json.dumps(raw_config))
    lines.write_text("training.seed=1\n\n# the second\ntraining.seed=2 model.encoding=rope\n")
    array = plan_array(str(config), ["training.steps=9"], lines)
    run = raw_config["run"]["directory"]
    assert [config.run.directory for config in array.configs.values()] == [f"{run}/0", f"{run}/1"]
    assert [(c.training.seed, c.training.steps, c.model.encoding) for c in array.configs.values()] == [
        (1, 9, "tape"),
        (2, 9, "rope"),
    ]
    text = render_job(array, new_job("tiny", 1, 4, True), SNAPSHOT)
    assert "#SBATCH --array=0-1" in text
    assert '"$snapshot/config-$SLURM_ARRAY_TASK_ID.json"' in text
    assert "tiny-%A_%a-rank%t.log" in text
    for text, message in (
        ("", "no runs"),
        ("run.directory=x", "run 0: run.directory is always"),
        ("training.seed=1\ntraining.step=1", "study, run 1 .*unknown key.*: correct its line"),
        ("training.seed='1", r"study \(No closing quotation\): write section.key=value overrides"),
        ("\xff", r"study \(.*can't decode byte 0xff.*: write section.key=value overrides in UTF-8"),
    ):
        lines.write_bytes(text.encode("latin-1"))
        with pytest.raises(UserError, match=f"(?s){message}"):
            plan_array(str(config), [], lines)
    lines.write_text("  # don't\ndata.cache=/x#7 training.seed=3 # the third\n")
    assert [(c.data.cache, c.training.seed) for c in plan_array(str(config), [], lines).configs.values()] == [("/x#7", 3)]
