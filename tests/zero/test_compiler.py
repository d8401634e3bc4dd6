"""Training does not import torch's compiler, which still works when something is compiled."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.distributed.topology import Topology
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.training_cases import train_cases


@pytest.mark.slow
def test_compiler_is_imported_on_first_use(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["training"] |= {"steps": 2, "activation_checkpointing": "full"}
    assert run_workers("tests.zero.test_compiler:train", 1, raw_config, tmp_path / "workers") == [[False, True]]


def train(config: dict[str, Any], topology: Topology) -> list[bool]:
    """Train at every stage, then compile a function.

    Returns:
        Whether the compiler was imported after training, and whether it is after compiling.
    """
    cases = [{"name": f"stage{stage}", "set": {"zero.stage": stage}} for stage in range(4)]
    for result in train_cases({"config": config, "cases": cases}, topology):
        assert "error" not in result
    imported = "torch._dynamo.utils" in sys.modules
    traced = []

    @torch.compiler.disable
    def marked(x: torch.Tensor) -> torch.Tensor:
        traced.append(torch.compiler.is_compiling())
        return 2 * x

    assert marked(torch.ones(())) == 2
    assert not imported
    compiled = torch.compile(lambda x: marked(x + 1) + 1, backend="eager")
    assert compiled(torch.ones(())) == 5
    assert traced == [False, False]
    return [imported, "torch._dynamo.utils" in sys.modules]
