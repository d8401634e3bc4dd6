"""Under ZeRO stage 3, whose hooks wrap the tensors between modules, layers keep as little as without it."""

from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from megatape.distributed.topology import Topology
from megatape.nn import norm, product
from megatape.nn.remat import Recipe, Remat, identity, recipe_of
from megatape.nn.shared_remat import remat_of
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.training_cases import train_cases


@pytest.mark.slow
def test_inputs_are_rebuilt_at_every_stage(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["training"] |= {"steps": 1, "activation_checkpointing": "selective"}
    cases = [{"name": f"stage {stage}", "set": {"zero.stage": stage}} for stage in (0, 3)]
    ((plain, divided),) = run_workers(f"{__name__}:count", 1, {"config": raw_config, "cases": cases}, tmp_path)
    assert plain == divided and min(plain.values()) > 0 and len(plain) == 4


def count(payload: dict[str, Any], topology: Topology) -> list[dict[str, int]]:
    """For each case, in how many calls a layer and a norm found what their input is rebuilt from, and in how many not."""
    found: list[dict[str, int]] = []
    for case in payload["cases"]:
        calls: Counter[str] = Counter()

        def found_for_layer(*args: Any, calls: Counter[str] = calls) -> Remat | None:
            found = remat_of(*args)
            calls["layer, saved" if found is None else "layer, rebuilt"] += 1
            return found

        def recipe_for_norm(*args: Any, calls: Counter[str] = calls) -> Recipe:
            recipe = recipe_of(*args)
            calls["norm, saved" if recipe.function is identity else "norm, rebuilt"] += 1
            return recipe

        with (
            patch.object(product, "remat_of", found_for_layer),
            patch.object(norm, "recipe_of", recipe_for_norm),
        ):
            (result,) = train_cases(payload | {"cases": [case]}, topology)
        assert "error" not in result, result
        found.append(dict(calls))
    return found
