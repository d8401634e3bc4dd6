"""All private names of DeepSpeed exist in the installed version."""

import importlib
from pathlib import Path
from typing import Any

import deepspeed
import pytest

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from tests.helpers.checks.private_names import PRIVATE_NAMES
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.trainers import trainer_without_lease

VERSION = "0.19.8"  # DeepSpeed version whose names were read


def test_the_names_were_read_from_the_installed_version() -> None:
    assert deepspeed.__version__.startswith(VERSION), "look for PRIVATE_NAMES in the new version, then change this one"


@pytest.mark.parametrize("module", [name for name in PRIVATE_NAMES if name.startswith("deepspeed")])
def test_private_names_of_modules_exist(module: str) -> None:
    """A name is a method of a class, an attribute of a module, or a submodule."""
    holder = getattr(deepspeed, module.removeprefix("deepspeed."), None)
    for name in PRIVATE_NAMES[module]:
        if hasattr(holder, name):
            continue
        if not hasattr(importlib.import_module(module), name):
            importlib.import_module(f"{module}.{name}")


def test_private_names_of_objects_exist(raw_config: dict[str, Any], tmp_path: Path) -> None:
    (missing,) = run_workers("tests.zero.setup.test_internals:find_missing", 1, raw_config, tmp_path / "workers")
    assert missing == []


def find_missing(raw: dict[str, Any], topology: Topology) -> list[str]:
    """Return the private names missing in engines of the stages 2 and 3."""
    missing = []
    engines: dict[str, dict[str, Any]] = {
        "at stages 1 and 2": {"stage": 2},
        "at stages 1 and 2, offloaded": {"stage": 2, "offload_optimizer": True},
        "at stage 3": {"stage": 3},
    }
    for suffix, zero in engines.items():
        directory = f"{raw['run']['directory']}/{suffix}"
        config = parse_config(raw | {"zero": zero, "run": {"directory": directory}}, "test")
        run = trainer_without_lease(config, topology)
        engine = run.engine.deepspeed_engine
        parameter = next(iter(run.engine.state.parameters.values()))
        objects = {
            "optimizer": engine.optimizer,
            "parameter": parameter,
            "mapping": getattr(parameter, "_hp_mapping", None),
            "module": engine.module,
        }
        for kind, holder in objects.items():
            for name in PRIVATE_NAMES.get(f"{kind} {suffix}", ()):
                if not hasattr(holder, name):
                    missing.append(f"{name} of the {kind} {suffix}")
    return missing
