"""Training does without torch's compiler, and what does compile still can."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.distributed.topology import Topology
from tests.helpers.training_cases import train_cases
from tests.helpers.workers import run_workers


@pytest.mark.slow
def test_compiler_is_imported_on_first_use(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["training"] |= {"steps": 2, "activation_checkpointing": "full"}
    assert run_workers("tests.zero.test_compiler:train", 1, raw_config, tmp_path / "workers") == [[False, True]]


def train(config: dict[str, Any], topology: Topology) -> list[bool]:
    """Whether the compiler has been imported after training at every stage, and whether it works then."""
    cases = [{"name": f"stage{stage}", "set": {"zero.stage": stage}} for stage in range(4)]
    assert not any("error" in result for result in train_cases({"config": config, "cases": cases}, topology))
    imported = "torch._dynamo.utils" in sys.modules
    traced = []

    @torch.compiler.disable
    def marked(x: torch.Tensor) -> torch.Tensor:
        traced.append(torch.compiler.is_compiling())
        return 2 * x

    assert marked(torch.ones(())) == 2 and not imported
    compiled = torch.compile(lambda x: marked(x + 1) + 1, backend="eager")
    assert compiled(torch.ones(())) == 5 and traced == [False, False]
    return [imported, "torch._dynamo.utils" in sys.modules]
