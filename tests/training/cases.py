"""What the workers of the training tests do."""

import copy
import shutil
from pathlib import Path
from typing import Any

from megatape.config import parse_config
from megatape.parallel.topology import Topology
from megatape.training.loop import train
from megatape.training.run import Run


def train_cases(payload: dict[str, Any], topology: Topology) -> list[dict[str, Any]]:
    """Train every case of the payload, one after the other: {"config": base, "cases": [{name, set, resume, copy}, ...]}.

    set: section.key -> value. copy: [from, to], a checkpoint folder to lay down first."""
    return [_train(payload["config"], case, topology) for case in payload["cases"]]


def _train(base: dict[str, Any], case: dict[str, Any], topology: Topology) -> dict[str, Any]:
    raw = copy.deepcopy(base)
    raw["run"]["directory"] = str(Path(raw["run"]["directory"]) / case["name"])
    for path, value in case.get("set", {}).items():
        section, _, key = path.partition(".")
        raw.setdefault(section, {})[key] = value
    if topology.is_main and "copy" in case:
        for source, destination in [case["copy"]]:
            shutil.copytree(Path(base["run"]["directory"]) / source, Path(base["run"]["directory"]) / destination)
    import torch.distributed as dist

    dist.barrier()
    run = Run(parse_config(raw, case["name"]), topology, case.get("resume"))
    start = {"step": run.step, "samples": run.samples}
    if case.get("only_save"):
        run.save()
    else:
        train(run)
    return start
