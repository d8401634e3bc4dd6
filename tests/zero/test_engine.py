"""If a loss or gradient is not finite on one rank, no rank takes the step, and the run continues as if it had not been."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from megatape.config import parse_config
from megatape.data.training.mixture import open_data
from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.training.trainer import Trainer
from tests.helpers.workers import run_workers

DIVIDED, WHOLE = "blocks.1.attention.query.weight", "blocks.1.attention_norm.weight"  # over tensor-parallel ranks
STAGES: dict[str, dict[str, Any]] = {
    "0": {"zero": {"stage": 0}},
    "1": {"zero": {"stage": 1}},
    "2": {"zero": {"stage": 2}},
    "3": {"zero": {"stage": 3}},
    "2 bfloat16": {"zero": {"stage": 2}, "precision": "bfloat16"},
    "3 bfloat16": {"zero": {"stage": 3}, "precision": "bfloat16"},
    "2 offload": {"zero": {"stage": 2, "offload_optimizer": True}},
    "3 offload": {"zero": {"stage": 3, "offload_optimizer": True}},
}
FIRST, LAST = (0,), (4,)  # steps without a fault
# Step with a fault -> where it is, the rank that has it, and how the message begins.
FAULTS = {
    1: ("loss", 2, "the loss is nan"),
    2: (DIVIDED, 1, "the gradient norm is"),
    3: (WHOLE, 3, "a gradient that every tensor-parallel rank must have is not finite on rank 3, but not on all"),
}


# DeepSpeed leaves out what is not finite in float32 at stages 1 and 2, and at stage 3; the rest is ours.
@pytest.mark.parametrize(
    "stages",
    [
        ["3"],
        pytest.param(["0", "1", "2", "2 bfloat16", "2 offload", "3 bfloat16", "3 offload"], marks=pytest.mark.slow),
    ],
)
def test_no_rank_takes_a_nonfinite_step(raw_config: dict[str, Any], tmp_path: Path, stages: list[str]) -> None:
    raw_config["training"] |= {"steps": 5, "micro_batch_size": 2}  # two micro-batches, of which the first has the fault
    raw_config["parallel"] = {"tp": 2}
    payload = {"config": raw_config, "stages": stages}
    for rank, found in enumerate(run_workers("tests.zero.test_engine:train", 4, payload, tmp_path / "workers")):
        for stage, (faults, unchanged, equal) in zip(stages, found, strict=True):
            for (_, _, expected), fault in zip(FAULTS.values(), faults, strict=True):
                assert fault.startswith(expected) or (stage != "0" and expected.startswith("a gradient") and fault), (
                    stage,
                    fault,
                )
            assert unchanged == [True] * len(FAULTS), (rank, stage)
            assert equal, (rank, stage)


def train(payload: dict[str, Any], topology: Topology) -> list[Any]:
    """Train at some of STAGES with FAULTS.

    Returns:
        For each stage the faults found, whether each left all numbers of this rank unchanged, and whether the run ends with the
        numbers of a run without such steps.
    """
    raw, results = payload["config"], []
    for stage in payload["stages"]:
        changes = STAGES[stage]
        faults, unchanged = [], []
        run = _run(raw, stage, changes, topology, "faults")
        for step in range(len(FIRST) + len(FAULTS) + len(LAST)):
            before = _numbers(run)
            where, victim, _ = FAULTS.get(step, ("", -1, ""))
            with _fault(run, where if topology.rank == victim else ""):
                result = run.train_step()
            if step in FAULTS:
                faults.append(result.skipped)
                unchanged.append(_equal(before, _numbers(run)))
            else:
                assert not result.skipped and not _equal(before, _numbers(run)), (stage, step, result)
        assert (run.state.step, run.state.updates) == (5, 2)

        straight = _run(raw, stage, changes, topology, "without")
        for _ in FIRST:
            straight.train_step()
        straight.state.samples += len(FAULTS) * straight.config.training.global_batch_size
        straight.stepper.forget_next_batch()
        for _ in LAST:
            straight.train_step()
        results.append([faults, unchanged, _equal(_numbers(run), _numbers(straight))])
    return results


def _run(raw: dict[str, Any], stage: str, changes: dict[str, Any], topology: Topology, name: str) -> Trainer:
    folder = f"{raw['run']['directory']}/{stage} {name}"
    training = raw["training"] | {key: value for key, value in changes.items() if key == "precision"}
    rates = {"optimizer": raw["optimizer"] | {"learning_rate": 1e-2}, "schedule": {"kind": "constant", "warmup_fraction": 0.0}}
    config = parse_config(raw | rates | {"zero": changes["zero"], "training": training, "run": {"directory": folder}}, stage)
    return Trainer(config, open_data(config), topology, Lease(RunFolder(Path(folder)).lease))


@contextmanager
def _fault(run: Trainer, where: str) -> Iterator[None]:
    """Make the first loss, or the first gradient of a parameter, NaN."""
    if not where:
        yield
        return
    module = run.engine.deepspeed.module
    parameter = run.engine.state.parameters.get(where)
    once = _once(torch.nan)
    if parameter is None:
        handle = module.register_forward_hook(lambda module, inputs, output: once(output))
    else:  # after the sum over tensor-parallel ranks, before the engine looks
        handle = parameter.register_hook(once)
        hooks = parameter._backward_hooks
        if len(hooks) > 1:
            watch = list(hooks)[-2]
            hooks[watch] = hooks.pop(watch)
    with handle:
        yield


def _once(number: float) -> Callable[[Tensor], Tensor]:
    left = [number]
    return lambda tensor: tensor * left.pop() if left else tensor


def _numbers(run: Trainer) -> list[Tensor]:
    """Return this rank's master weights, optimizer state and compute weights."""
    state = run.engine.state
    masters = [state.piece(name, kind).values.clone() for kind, names in state.tensors.items() for name in names]
    counts = [values["step"].clone() for values in state.optimizer.state.values()]
    computed = [getattr(parameter, "ds_tensor", parameter).data.clone() for parameter in state.parameters.values()]
    return masters + counts + computed


def _equal(these: list[Tensor], those: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(these, those, strict=True))
