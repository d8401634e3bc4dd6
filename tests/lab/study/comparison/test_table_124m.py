"""The comparison at 124M parameters of docs/compare_encodings.md, at a size that trains in seconds."""

import itertools
import json
import shlex
from pathlib import Path

import pytest

from megatape.lab.study.comparison.compare import compare
from megatape.lab.study.execution.pool import RunPool
from megatape.lab.study.execution.study import Study
from megatape.lab.study.execution.task_evaluation import TaskCommand
from tests.helpers.runs.small_run import VOCAB_SIZE

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/compare_encodings.md"
START = "megatape study compare --config configs/studies/rope_124m.json --seeds 2 --jobs"
# Smaller values than the file's. The pattern of four layers fits twice into eight.
SMALL = {
    "model.num_layers": 8,
    "model.hidden_size": 32,
    "model.num_heads": 2,
    "model.mlp_size": 48,
    "model.vocab_size": VOCAB_SIZE,
    "model.position_size": 6,
    "model.max_positions": 128,
    "data.sequence_length": 16,
    "training.steps": 3,
    "training.global_batch_size": 4,
    "training.micro_batch_size": 4,
    "training.precision": "float32",
    "training.compile": "false",
    "evaluation.samples": 4,
    "logging.interval": 1,
}
QUESTIONS = """
task: capitals
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
"""


def _documented_options() -> dict[str, list[str]]:
    """Return the values of each option in the page's command."""
    text = PAGE.read_text()
    begin = text.index(START)
    command = text[begin : text.index("```", begin)]
    words = shlex.split(command.replace("\\\n", " "))
    values: dict[str, list[str]] = {}
    for name, value in itertools.pairwise(words):
        if name.startswith("--"):
            values.setdefault(name, []).append(value)
    return values


def _own_task(folder: Path) -> str:
    """Write a task for lm-eval, and return the folder of its file."""
    questions = [{"question": f"abc {number}", "choices": ["a", "b"], "answer": number % 2} for number in range(4)]
    file = folder / "questions.json"
    file.write_text("".join(f"{json.dumps(question)}\n" for question in questions))
    tasks = folder / "tasks"
    tasks.mkdir()
    (tasks / "capitals.yaml").write_text(QUESTIONS.format(file=file))
    return str(tasks)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_children")
def test_documented_comparison_at_a_small_size(data_directory: Path, tmp_path: Path) -> None:
    options = _documented_options()
    (encodings,) = options["--encodings"]
    tasks = [TaskCommand.parse(text) for text in options["--evaluate"]]
    assert [task.task for task in tasks] == ["lm-eval", "lm-eval"]
    small_task = TaskCommand.parse(f"lm-eval --tasks capitals --include {_own_task(tmp_path)}")
    settings = [f"{key}={value}" for key, value in SMALL.items()]
    settings.append(f"data.path={data_directory}")
    shown: list[str] = []

    compare(
        file=str(ROOT / "configs/studies/rope_124m.json"),
        overrides=settings,
        encodings=encodings.replace("rope@256", "rope@8"),
        seeds=1,
        study=Study(tmp_path / "out", RunPool(1, None), "typed", shown.append),
        tasks=[small_task],
    )

    printed = "\n".join(shown)
    assert "8 runs, 8 of them to do" in printed
    rows = [line for line in printed.splitlines() if line.startswith("| `path`")]
    # Perplexity, loss by position, lm-eval's task, and the differences of the three from rope.
    assert len(rows) == 6
    for title in ("loss at positions 65-128", "perplexity at 128", "capitals"):
        assert title in printed
