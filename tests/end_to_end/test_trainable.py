"""Parameters excluded by training.trainable do not change, and cost no gradient, moment or master weight in any layout."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.memory_parts import MemoryPart
from megatape.accounting.memory.rank_memory import plan_memory
from megatape.accounting.shapes.trace import trace_micro_batch
from megatape.accounting.workload import Workload
from megatape.config import parse_config
from megatape.model.build import meta_model
from megatape.model.trainable import check_trainable, freeze
from megatape.run_folder import RunFolder
from tests.helpers.checks import bounds
from tests.helpers.runs.case_runs import assert_no_errors, run_cases
from tests.helpers.runs.run_folders import KINDS, assert_all_close, assert_identical, step_tensors

CHOSEN = ["position", "norm.weight", "head.weight", "blocks.1.mlp.down.weight"]  # the first block's input has no gradient


class Run(NamedTuple):
    """A run that is compared with the run "plain".

    Attributes:
        name: Name of the run.
        settings: Changes of the configuration.
        is_resumed: Whether the run is also resumed from the checkpoint of its second step.
    """

    name: str
    settings: dict[str, Any]
    is_resumed: bool = False


OFFLOADED = {"zero.stage": 3, "zero.offload_optimizer": True, "zero.offload_parameters": True}
ON_ONE_RANK = [
    Run("plain", {"zero.stage": 0}, is_resumed=True),
    Run("stage1", {"zero.stage": 1}),
]
ON_FOUR_RANKS = [
    Run("stage0", {"parallel.tp": 2, "zero.stage": 0}, is_resumed=True),
    Run("stage2", {"parallel.tp": 2, "zero.stage": 2}),
    Run("stage3", {"parallel.tp": 2, "zero.stage": 3}, is_resumed=True),
    Run("offloaded", {"parallel.tp": 2} | OFFLOADED),
]


@pytest.mark.slow
def test_same_on_every_topology(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Three steps equal those of one process, and are resumed bit for bit after the second."""
    raw_config["training"] |= {"steps": 3, "trainable": CHOSEN}
    # A large eps keeps Adam's updates smooth (see test_stages.py).
    raw_config["optimizer"]["eps"] = 1e-3
    raw_config["model"]["vocab_size"] = 301
    raw_config["checkpoint"] = {"interval": 1, "keep": 4}
    root = Path(raw_config["run"]["directory"])
    for num_ranks, runs in ((1, ON_ONE_RANK), (4, ON_FOUR_RANKS)):
        cases: list[dict[str, Any]] = []
        for run in runs:
            case = {"name": run.name, "set": run.settings}
            cases.append(case)
            if run.is_resumed:
                checkpoint = RunFolder(root / run.name).checkpoint(2)
                cases.append(case | {"name": f"{run.name}-resumed", "resume": str(checkpoint)})
        assert_no_errors(run_cases(raw_config, cases, num_ranks, tmp_path / f"workers-{num_ranks}"))

    check_chosen_weights(root / "plain")
    for run in ON_ONE_RANK + ON_FOUR_RANKS:
        for kind in KINDS:
            expected = step_tensors(root / "plain", kind, step=3)
            actual = step_tensors(root / run.name, kind, step=3)
            assert_all_close(actual, expected, bounds.TRAINED, (run.name, kind))
            if run.is_resumed:
                assert_identical(step_tensors(root / f"{run.name}-resumed", kind, step=3), actual, (run.name, kind))


def check_chosen_weights(run: Path) -> None:
    """Check that only chosen weights have moments and have changed between the first and the last step."""
    chosen = step_tensors(run, "exp_avg", step=3).keys()
    assert {"head.weight", "norm.weight", "blocks.0.position.down", "blocks.1.mlp.down.weight"} <= chosen
    assert not {"embedding.weight", "blocks.0.mlp.down.weight", "blocks.1.attention_norm.weight"} & chosen
    first = step_tensors(run, "weight", step=1)
    last = step_tensors(run, "weight", step=3)
    for name in ("head.weight", "norm.weight"):
        assert not torch.equal(last[name], first[name]), name
    for name in last.keys() - chosen:
        assert torch.equal(last[name], first[name]), name


@pytest.mark.slow
def test_frozen_weights_have_the_precision_that_they_compute_with(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["training"] |= {"steps": 1, "trainable": CHOSEN, "precision": "bfloat16"}
    cases = [{"name": f"stage{stage}", "set": {"zero.stage": stage}} for stage in (2, 3)]

    assert_no_errors(run_cases(raw_config, cases, 2, tmp_path / "workers"))

    for stage in (2, 3):
        weights = step_tensors(Path(raw_config["run"]["directory"]) / f"stage{stage}", "weight", step=1)
        frozen = weights["embedding.weight"]
        assert torch.equal(frozen, frozen.bfloat16().float())
        trained = weights["head.weight"]
        assert not torch.equal(trained, trained.bfloat16().float())


@pytest.mark.parametrize("stage", [0, 3])
def test_planned_memory(raw_config: dict[str, Any], stage: int) -> None:
    """Frozen weights need memory for themselves alone."""
    raw_config["zero"] = {"stage": stage}
    all_config = parse_config(raw_config, "test")
    raw_config["training"]["trainable"] = CHOSEN
    chosen_config = parse_config(raw_config, "test")

    memory_of_all = plan_memory(TrainingLayout.from_config(all_config, 2), on_gpu=False).device
    memory_of_chosen = plan_memory(TrainingLayout.from_config(chosen_config, 2), on_gpu=False).device

    model = meta_model(chosen_config.model)
    freeze(model, chosen_config.training.trainable, chosen_config.training.frozen)
    num_trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    share = num_trained / sum(parameter.numel() for parameter in model.parameters())
    assert 0.1 < share < 0.9
    for part in (MemoryPart.GRADIENTS, MemoryPart.MOMENTS, MemoryPart.MASTER_WEIGHTS):
        assert memory_of_chosen[part] == pytest.approx(share * memory_of_all[part], rel=0.01)  # padding
    assert memory_of_chosen[MemoryPart.WEIGHTS] == memory_of_all[MemoryPart.WEIGHTS]


def test_groups_and_patterns(raw_config: dict[str, Any]) -> None:
    model = meta_model(parse_config(raw_config, "test").model)

    freeze(model, ["embeddings", "norms", "blocks.0.mlp.*"], [])

    expected = {"embedding.weight", "norm.weight"}
    for layer in (0, 1):
        expected |= {f"blocks.{layer}.attention_norm.weight", f"blocks.{layer}.mlp_norm.weight"}
    expected |= {f"blocks.0.mlp.{name}.weight" for name in ("gate", "up", "down")}
    assert trained_names(model) == expected

    freeze(model, ["all"], [])
    assert trained_names(model) == {name for name, _ in model.named_parameters()}


def test_patterns_are_checked(raw_config: dict[str, Any]) -> None:
    model = meta_model(parse_config(raw_config, "test").model)

    with pytest.raises(ValueError, match="training.trainable: 'blocks.2.\\*' matches no parameter of this model: give a group"):
        check_trainable(model, ["norms", "blocks.2.*"], [])
    # The loss would have no gradient.
    with pytest.raises(ValueError, match="trains the position update of block 1 only, which no later block reads"):
        check_trainable(model, ["blocks.1.position.*"], [])
    check_trainable(model, ["position"], [])


def test_frozen_is_taken_from_what_is_trainable(raw_config: dict[str, Any]) -> None:
    """An example is the gain of the TAPE authors' code, which was meant to be trained."""
    raw_config["training"] |= {"trainable": ["position"], "frozen": ["*.position.gain"]}
    config = parse_config(raw_config, "test")
    model = meta_model(config.model)

    freeze(model, config.training.trainable, config.training.frozen)

    expected = set()
    for layer in (0, 1):
        expected |= {f"blocks.{layer}.position.{name}" for name in ("content", "up", "down")}
    assert trained_names(model) == expected
    trace_micro_batch(Workload.from_config(config))


@pytest.mark.parametrize(
    ("frozen", "error"),
    [
        (["*.position.gian"], "training.frozen: '\\*.position.gian' matches no parameter of this model: give a group"),
        (["blocks.*"], "training.frozen \\['blocks.\\*'\\] freezes all that .* so nothing is trained"),
    ],
    ids=["no parameter", "all parameters"],
)
def test_frozen_patterns_are_checked(raw_config: dict[str, Any], frozen: list[str], error: str) -> None:
    raw_config["training"] |= {"trainable": ["position"], "frozen": frozen}

    with pytest.raises(ValueError, match=error):
        trace_micro_batch(Workload.from_config(parse_config(raw_config, "test")))


def test_a_plan_where_only_the_last_layers_train(raw_config: dict[str, Any]) -> None:
    raw_config["model"]["num_layers"] = 4
    raw_config["training"]["trainable"] = ["blocks.3.*"]
    config = parse_config(raw_config, "test")
    model = meta_model(config.model)
    freeze(model, config.training.trainable, config.training.frozen)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}

    traced = trace_micro_batch(Workload.from_config(config)).trained

    # Nothing reads the last block's position state.
    expected = sum(sizes[name] for name in trained_names(model) if ".position." not in name)
    assert sum(parameter.numel() for parameter in traced) == expected


def trained_names(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}
