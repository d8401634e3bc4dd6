"""Run directories as training writes them, made without training."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from megatape.config import parse_config, save_config
from megatape.config.sections.run import LoggingConfig
from megatape.lab.tasks.engine.result import Measure
from megatape.reliability.run_log import event_entry
from megatape.run_folder import RunFolder
from megatape.training.reporting.step_metrics import StepMetrics
from megatape.training.validation.result import Validation
from megatape.utils.files.json_lines import append_lines
from tests.helpers.runs.position_views import some_view
from tests.helpers.runs.run_context import make_callbacks, make_context
from tests.helpers.runs.small_run import small_config

HOSTILE = '<img src=x onerror="document.title=1">'


def make_run(
    directory: Path,
    data: Path,
    steps: int = 20,
    evaluated: int = 5,
    encoding: str = "tape",
    seed: int = 1234,
    ema: bool = False,
    **model: Any,
) -> RunFolder:
    """Write a run whose loss falls with the steps and rises with the seed, with a position view at each evaluation.

    With `ema` the moving average has a validation loss that is 0.1 lower than that of the weights."""
    raw = small_config(data, directory)
    raw["model"] |= {"encoding": encoding, **model}
    raw["training"] |= {"steps": steps, "seed": seed}
    config = parse_config(raw, "test")
    folder = RunFolder(directory)
    directory.mkdir(parents=True)
    save_config(config, folder.config)
    context = make_context(config.model_copy(update={"logging": LoggingConfig(sinks=("jsonl",))}), folder)
    append_lines(folder.events, [event_entry("started", 0, "1 rank on cpu")])
    with make_callbacks(context) as callbacks:
        for step in range(1, steps + 1):
            loss = 2 + 4 * math.exp(-step / steps) + seed / 10_000 + 0.1 * math.sin(step)
            view = None
            if encoding.startswith("tape"):
                view = some_view(config.model.num_layers, 16, config.model.num_heads, scale=step / steps)
            ema_loss = loss + 0.1 if ema else None
            validation = Validation(loss + 0.2, view, ema_loss=ema_loss) if step % evaluated == 0 else None
            metrics = StepMetrics(step, loss, 1 + 1 / step, 1e-3, 256 * step, 8 * step, 0.1, 2**30, validation)
            callbacks.on_step(metrics)
            if validation:
                append_lines(folder.events, [event_entry("checkpoint", step, f"step-{step:08d}")])
    return folder


OWN_MODULE = "/home/somebody/own.py"  # a missing file


def train_with_own_module(folder: RunFolder) -> None:
    """Edit a run's recorded configuration to import OWN_MODULE, which registers parts of all kinds."""
    raw = json.loads(folder.config.read_text())
    raw["run"]["imports"] = [OWN_MODULE]
    raw["model"] |= {"encoding": "own", "normalization": "own"}
    raw["optimizer"] |= {"kind": "own", "momentum": 0.75}
    raw["schedule"] |= {"kind": "own", "stairs": 3}
    raw["logging"] |= {"sinks": ["jsonl", "own"], "callbacks": ["own"]}
    raw["parallel"]["sp"] = 2
    folder.config.write_text(json.dumps(raw))


def make_results(folder: Path, task: str, model: str, measures: list[Measure], **more: Any) -> Path:
    """Write a results.json as `megatape evaluate` does."""
    folder.mkdir(parents=True)
    content = {"format": 1, "task": task, "model": {"name": model}, "settings": {}, "measures": list(map(asdict, measures))}
    path = folder / "results.json"
    path.write_text(json.dumps(content | {"paper": {}} | more))
    return path


def cut(folder: RunFolder, steps: int) -> None:
    """Remove all but a run's first steps."""
    folder.metrics.write_text("".join(folder.metrics.read_text().splitlines(keepends=True)[:steps]))
