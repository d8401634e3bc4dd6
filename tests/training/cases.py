"""What the workers of the training tests do."""

import copy
from pathlib import Path
from typing import Any

from megatape.config import parse_config
from megatape.data.splits import open_data
from megatape.runtime.topology import Topology
from megatape.training.loop import train
from megatape.training.run import Run
from megatape.zero.engine import TrainingDiverged


def train_cases(payload: dict[str, Any], topology: Topology) -> list[dict[str, Any]]:
    """Train the cases of {"config": base, "cases": [{name, set, resume, only_save, profile}, ...]} one after the other.

    name: folder of the run below the base's. set: section.key -> value. only_save: write a checkpoint without training. profile: steps to trace.
    Returns for each where it started, or the error that ended it."""
    return [_train(payload["config"], case, topology) for case in payload["cases"]]


def _train(base: dict[str, Any], case: dict[str, Any], topology: Topology) -> dict[str, Any]:
    raw = copy.deepcopy(base)
    raw["run"]["directory"] = str(Path(raw["run"]["directory"]) / case["name"])
    for path, value in case.get("set", {}).items():
        section, _, key = path.partition(".")
        raw.setdefault(section, {})[key] = value
    print(f"case {case['name']}", flush=True)
    try:
        config = parse_config(raw, case["name"])
        run = Run(config, open_data(config), topology, case.get("resume"))
        start = {"step": run.step, "samples": run.samples}
        if case.get("only_save"):
            run.save()
        else:
            train(run, case.get("profile", 0))
    except (ValueError, OSError, TrainingDiverged) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return start
