"""Under ZeRO stage 3, whose hooks wrap the tensors between modules, layers keep as little as without it."""

from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from megatape.distributed.topology import Topology
from megatape.nn import linear_function, norm
from megatape.nn.linear_function import matching_remat
from megatape.nn.remat.remat import Recipe, Remat, identity, recipe_of
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.case_runs import assert_no_errors
from tests.helpers.runs.training_cases import train_cases


@pytest.mark.slow
def test_inputs_are_rebuilt_at_every_stage(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["training"] |= {"steps": 1, "activation_checkpointing": "selective"}
    cases = [{"name": f"stage {stage}", "set": {"zero.stage": stage}} for stage in (0, 3)]

    ((plain, sharded),) = run_workers(f"{__name__}:count_calls", 1, {"config": raw_config, "cases": cases}, tmp_path)

    assert sharded == plain
    assert len(plain) == 4
    assert min(plain.values()) > 0


def count_calls(payload: dict[str, Any], topology: Topology) -> list[dict[str, int]]:
    """For each case, count the calls in which layers and norms rebuild their inputs, and in which they save them."""
    return [_count_calls(payload | {"cases": [case]}, topology) for case in payload["cases"]]


def _count_calls(payload: dict[str, Any], topology: Topology) -> dict[str, int]:
    calls: Counter[str] = Counter()

    def remat_for_layer(*arguments: Any) -> Remat | None:
        remat = matching_remat(*arguments)
        calls["layer, saved" if remat is None else "layer, rebuilt"] += 1
        return remat

    def recipe_for_norm(*arguments: Any) -> Recipe:
        recipe = recipe_of(*arguments)
        calls["norm, saved" if recipe.function is identity else "norm, rebuilt"] += 1
        return recipe

    with patch.object(linear_function, "matching_remat", remat_for_layer), patch.object(norm, "recipe_of", recipe_for_norm):
        assert_no_errors(train_cases(payload, topology))
    return dict(calls)
