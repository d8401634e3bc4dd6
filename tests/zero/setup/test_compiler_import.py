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
    (imported,) = run_workers("tests.zero.setup.test_compiler_import:train_and_compile", 1, raw_config, tmp_path / "workers")
    assert imported == {"after training": False, "after compiling": True}


def train_and_compile(config: dict[str, Any], topology: Topology) -> dict[str, bool]:
    """Train at every stage, then compile a function. Return when the compiler was imported."""
    cases = [{"name": f"stage{stage}", "set": {"zero.stage": stage}} for stage in range(4)]
    for result in train_cases({"config": config, "cases": cases}, topology):
        assert "error" not in result
    imported = {"after training": "torch._dynamo.utils" in sys.modules}
    traced = []

    @torch.compiler.disable
    def marked(x: torch.Tensor) -> torch.Tensor:
        traced.append(torch.compiler.is_compiling())
        return 2 * x

    assert marked(torch.ones(())) == 2
    assert not imported["after training"]
    compiled = torch.compile(lambda x: marked(x + 1) + 1, backend="eager")
    assert compiled(torch.ones(())) == 5
    assert traced == [False, False]
    imported["after compiling"] = "torch._dynamo.utils" in sys.modules
    return imported
