"""Running the scripts in examples/ with small settings, one after another in one process, because importing takes longest."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.processes.load import scaled

ROOT = Path(__file__).parents[2]
SMALL = [
    "training.steps=2",
    "data.sequence_length=32",
    "training.global_batch_size=8",
    "evaluation.samples=8",
    "model.num_layers=1",
]
SCRIPT = f"""
import sys
from pathlib import Path
from examples import add_encoding, load_export, train
from megatape.commands.cli.main import main

folder = Path(sys.argv[1])
assert train.main(folder, *{SMALL}) == 0
assert main(["export", f"{{folder}}/run/checkpoints/step-00000002", f"{{folder}}/exported"]) == 0
load_export.main(f"{{folder}}/exported", "import ")
(folder / "run").rename(folder / "first")
assert train.main(folder, "model.encoding=kerple", *{SMALL}) == 0
"""


@pytest.mark.slow
def test_examples(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=scaled(300))

    assert run.returncode == 0, run.stdout + run.stderr
    trained = run.stdout.index("\ntape: ")
    loaded = run.stdout.index("nats per token")
    added = run.stdout.index("\nkerple: ")
    assert trained < loaded < added
    assert run.stdout.count("step 2: loss ") == 2
