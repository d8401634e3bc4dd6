"""The gradient norm at stages 1 to 3 is DeepSpeed's, and an update launches no kernel for each weight."""

from pathlib import Path
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.utils.pytorch.torch_internals import is_view
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.trainers import trainer_without_lease

NUM_TARGETS = 100.0


class Counting(TorchDispatchMode):
    """Counts the operations inside its block that are not views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not is_view(function)
        return function(*args, **(kwargs or {}))


def test_norm_and_launches(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Tensor-parallel ranks count the gradients of replicated weights once."""
    raw_config["training"] |= {"precision": "bfloat16"}
    results = run_workers("tests.zero.stages.test_joint_norm:measure", 2, raw_config, tmp_path / "workers")
    for result in results:
        # The norm of norms is rounded once more than DeepSpeed's, in float64.
        assert result["norms"] == pytest.approx(result["expected"], rel=1e-12)
        shallow, deep = result["launches"]
        few_weights, many_weights = result["weights"]
        for stage, count in deep.items():
            assert count - shallow[stage] < (many_weights - few_weights) / 2, stage


def measure(raw: dict[str, Any], topology: Topology) -> dict[str, Any]:
    """Return each group's gradient norm, DeepSpeed's own, and weights of two models and operations of their updates."""
    norms: list[float] = []
    expected: list[float] = []
    weights = []
    launches = []
    for num_layers in (2, 4):
        launches_by_stage = {}
        for stage in (1, 2, 3):
            raw["model"]["num_layers"] = num_layers
            raw["run"]["directory"] += f"/{num_layers}-{stage}"
            raw |= {"zero": {"stage": stage}, "parallel": {"tp": 2}}
            run = trainer_without_lease(parse_config(raw, "test"), topology)
            run.train_step()
            batches = [batch.inputs_on(run.engine.device) for batch in run.loader.step(0)]
            passes = run.engine.forward_backward(batches, NUM_TARGETS)
            optimizer = run.engine.deepspeed_engine.optimizer
            parameters_by_group = optimizer.fp16_groups if stage == 3 else optimizer.params_in_partition
            for group, gradients in optimizer.averaged_gradients.items():
                parameters = parameters_by_group[group]
                norms.append(float(optimizer.get_grad_norm_direct(gradients, parameters)))
                expected.append(float(type(optimizer).get_grad_norm_direct(optimizer, gradients, parameters)))
            with Counting() as counting:
                run.engine.update(1e-3, 1.0, passes.sums._replace(loss=1.0, num_nonfinite=0.0, squared_norm=0.0))
            launches_by_stage[stage] = counting.count
        launches.append(launches_by_stage)
        weights.append(len(run.engine.state.parameters))
    return {"norms": norms, "expected": expected, "weights": weights, "launches": launches}
