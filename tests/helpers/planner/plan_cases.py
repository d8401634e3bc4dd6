"""Functions for workers in the planner's tests."""

import copy
from pathlib import Path
from typing import Any

from megatape.config import Config, parse_config
from megatape.distributed.topology import Topology
from megatape.distributed.traffic import TrafficCounter
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.training.startup.build_trainer import build_trainer
from tests.helpers.runs.compilers import without_inductor
from tests.helpers.runs.run_data import open_run_data

WARM_UP = 3  # Steps until DeepSpeed's stage 3 has seen the module order twice and starts prefetching


def configure(base: dict[str, Any], name: str, changes: dict[str, Any]) -> Config:
    """Return the base configuration after changing section.key -> value, with its own run directory."""
    raw = copy.deepcopy(base)
    raw["run"]["directory"] = str(Path(raw["run"]["directory"]) / name)
    for path, value in changes.items():
        section, _, key = path.partition(".")
        raw.setdefault(section, {})[key] = value
    return parse_config(raw, name)


def count_cases(payload: dict[str, Any], topology: Topology) -> list[dict[str, dict[str, int]]]:
    """Return the bytes sent by this rank in one optimizer step, for each case in {"config": base, "cases": {name: changes}}."""
    return [_count(configure(payload["config"], name, changes), topology) for name, changes in payload["cases"].items()]


def host_tensors(payload: dict[str, Any], topology: Topology) -> dict[str, int]:
    """Return the bytes that DeepSpeed keeps in host memory with zero.offload_optimizer, by part."""
    config = parse_config(payload, "offload")
    run = build_trainer(config, open_run_data(config), topology, Lease(RunFolder(Path(config.run.directory)).lease))
    run.train_step()
    optimizer = run.engine.deepspeed_engine.optimizer
    masters = optimizer.fp32_partitioned_groups_flat if config.zero.stage == 3 else optimizer.single_partition_of_fp32_groups
    state = [value for of_group in optimizer.optimizer.state.values() for value in of_group.values() if value.numel() > 1]
    parts = {"master weights": masters, "moments": state, "flattened gradients": [master.grad for master in masters]}
    if config.zero.stage == 3:
        parts["gradients"] = [optimizer.grad_partitions_flat_buffer]
    return {part: sum(tensor.nbytes for tensor in tensors) for part, tensors in parts.items()}


def _count(config: Config, topology: Topology) -> dict[str, dict[str, int]]:
    print(f"case {config.run.directory}", flush=True)
    with without_inductor():
        run = build_trainer(config, open_run_data(config), topology, Lease(RunFolder(Path(config.run.directory)).lease))
    for _ in range(WARM_UP if config.zero.stage == 3 else 1):
        run.train_step()
    with TrafficCounter(*(run.engine.mesh[name] for name in ("tensor", "sequence", "context", "replicate"))) as counted:
        run.train_step()
    return {group: dict(sent) for group, sent in counted.sent.items()} | {
        "overlapped": {axis: counted.overlapped[axis] for axis in ("tensor", "context")}
    }
