"""Compiled blocks at ZeRO 3: their graphs keep no gathered weights in memory."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.compilers import without_inductor
from tests.helpers.runs.trainers import trainer_without_lease


@pytest.mark.slow
def test_gathered_weights_are_released_after_the_forward_pass(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Autograd saves the weights themselves, whose memory DeepSpeed frees. A view of a weight would keep all of it."""
    raw_config["zero"] = {"stage": 3}
    raw_config["training"]["compile"] = True
    results = run_workers("tests.zero.stages.test_gathered_blocks:count_weights", 2, raw_config, tmp_path / "workers")
    for gathered, remaining in results:
        assert gathered > 2 * 9
        assert remaining == 0


def count_weights(raw: dict[str, Any], topology: Topology) -> tuple[int, int]:
    """Return how many weights the blocks of a first step gather, and how many are in memory after the last block."""
    with without_inductor():
        run = trainer_without_lease(parse_config(raw, "test"), topology)
    module = run.engine.deepspeed_engine.module
    gathered: list[weakref.ref[Any]] = []
    counts: list[tuple[int, int]] = []

    def record(block: nn.Module, inputs: object) -> None:
        gathered.extend(weakref.ref(weight.untyped_storage()) for weight in block.parameters())

    def count(norm: nn.Module, inputs: object) -> None:
        gc.collect()
        remaining = [memory for memory in gathered if memory() is not None]
        counts.append((len(gathered), len(remaining)))

    for block in module.blocks:
        block.register_forward_pre_hook(record)
    module.norm.register_forward_pre_hook(count)
    run.train_step()
    # DeepSpeed gathers ahead from the second micro-batch on.
    return counts[0]
