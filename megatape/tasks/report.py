"""Runs an evaluation task and writes its results: a JSON file and a picture."""

import json
from pathlib import Path

from megatape.hf.loading import load_trained
from megatape.tasks.task import Task


def report(name: str, task: Task, model: Path, output: Path, trust_remote_code: bool = False, base: Path | None = None) -> str:
    """Evaluate a checkpoint or an export, write <name>.json and <name>.png into the new folder, and return a summary.

    trust_remote_code, base: as load_trained takes them. Raises FileExistsError if `output` exists, and what load_trained and
    Task.evaluate raise."""
    if output.exists():
        raise FileExistsError(f"--output {output} exists: remove it or choose another name")
    with load_trained(model, trust_remote_code=trust_remote_code, base=base) as loaded:
        result = task.evaluate(loaded)
    output.mkdir(parents=True)
    content = {"model": model} | vars(task) | result.describe()
    (output / f"{name}.json").write_text(json.dumps(content, default=str) + "\n", encoding="utf-8")
    result.draw(f"{model}\n{result.summary}", output / f"{name}.png")
    return f"{result.summary}\nwrote {output}"
