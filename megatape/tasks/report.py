"""Evaluations as folders of a table and a picture."""

import json
from pathlib import Path

from megatape.hf.loading import load_trained
from megatape.tasks.addition import evaluate_addition
from megatape.tasks.heat_map import draw_heat_map


def report_addition(model: Path, data: Path, output: Path, max_digits: int | None) -> str:
    """Evaluate a checkpoint or an export, write addition.json and addition.png into the new folder, return a summary.

    Raises FileExistsError if `output` is there already, otherwise as evaluate_addition and load_trained do."""
    if output.exists():
        raise FileExistsError(f"--output {output} exists: remove it or choose another name")
    with load_trained(model) as loaded:
        grid = evaluate_addition(loaded, data, max_digits)
    size = len(grid.correct)
    beyond = "" if grid.beyond is None else f", beyond {grid.beyond:.2%}"
    summary = f"exact match: trained lengths {grid.inside:.2%}{beyond}, all {size} x {size} lengths {grid.mean:.2%}"
    output.mkdir(parents=True)
    content = {"model": str(model), "data": str(data)} | grid.describe()
    (output / "addition.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
    draw_heat_map(grid, f"{model}\n{summary}", output / "addition.png")
    return f"{summary}\nwrote {output}"
