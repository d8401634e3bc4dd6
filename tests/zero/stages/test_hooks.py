"""Hooks of ZeRO-3, which slow down every layer: they inspect no signatures and open no NVTX ranges."""

import inspect
from pathlib import Path
from typing import Any
from unittest.mock import patch

from deepspeed.accelerator import get_accelerator

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.trainers import trainer_without_lease


def test_a_step_inspects_no_signatures_and_opens_no_ranges(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["zero"] = {"stage": 3}
    (counts,) = run_workers("tests.zero.stages.test_hooks:count_calls", 1, raw_config, tmp_path / "workers")
    assert counts == {"signatures": 0, "ranges": 0}


def count_calls(raw: dict[str, Any], topology: Topology) -> dict[str, int]:
    """Count the signatures that a step inspects, and the ranges that it opens."""
    config = parse_config(raw, "test")
    run = trainer_without_lease(config, topology)
    run.train_step()
    with (
        patch.object(inspect, "_signature_from_function", wraps=inspect._signature_from_function) as signatures,  # type: ignore[attr-defined]
        patch.object(type(get_accelerator()), "range_push") as ranges,
    ):
        run.train_step()
    return {"signatures": signatures.call_count, "ranges": ranges.call_count}
