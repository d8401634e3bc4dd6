"""What training.trainable leaves out stays as it is and costs no gradient, moment or master weight, on any topology."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory import plan_memory
from megatape.accounting.memory_parts import MemoryPart
from megatape.accounting.parameters import meta_model
from megatape.accounting.trace import run_pass
from megatape.accounting.workload import Workload
from megatape.config import parse_config
from megatape.model.trainable import check_trainable, freeze
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import tensors
from tests.helpers.runs.training_cases import TRAIN_CASES

CHOSEN = ["position", "norm.weight", "head.weight", "blocks.1.mlp.down.weight"]  # the first block's input has no gradient
TOPOLOGIES: dict[tuple[int, int], dict[str, dict[str, Any]]] = {
    (1, 1): {"plain": {"zero.stage": 0}, "stage1": {"zero.stage": 1}},
    (4, 2): {
        "stage0": {"zero.stage": 0},
        "stage2": {"zero.stage": 2},
        "stage3": {"zero.stage": 3},
        "offloaded": {"zero.stage": 3, "zero.offload_optimizer": True, "zero.offload_parameters": True},
    },
}
RESUMED = ("plain", "stage0", "stage3")


@pytest.mark.slow
def test_same_on_every_topology(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Three steps equal those of one process, and go on bit for bit from the second one's checkpoint."""
    raw_config["training"] |= {"steps": 3, "trainable": CHOSEN}
    raw_config["optimizer"]["eps"] = 1e-3  # as in test_stages.py
    raw_config["model"]["vocab_size"] = 301
    raw_config["checkpoint"] = {"interval": 1, "keep": 4}
    folder = Path(raw_config["run"]["directory"])
    for (world_size, tensor_size), stages in TOPOLOGIES.items():
        cases = []
        for name, changes in stages.items():
            case = {"name": name, "set": changes | {"parallel.tp": tensor_size}}
            cases += [case]
            if name in RESUMED:
                cases += [case | {"name": f"{name}-resumed", "resume": str(folder / name / "checkpoints/step-00000002")}]
        workers = tmp_path / f"workers-{world_size}"
        results = run_workers(TRAIN_CASES, world_size, {"config": raw_config, "cases": cases}, workers)
        assert [result.get("error") for result in results[0]] == [None] * len(cases)

    first, last = (folder / "plain" / f"checkpoints/step-0000000{step}" for step in (1, 3))
    chosen = tensors(last, "exp_avg").keys()
    assert {"head.weight", "norm.weight", "blocks.0.position.down", "blocks.1.mlp.down.weight"} <= chosen
    assert not {"embedding.weight", "blocks.0.mlp.down.weight", "blocks.1.attention_norm.weight"} & chosen
    before = tensors(first, "weight")
    after = tensors(last, "weight")
    assert {name for name, tensor in after.items() if torch.equal(tensor, before[name])}.isdisjoint(
        {"head.weight", "norm.weight"}
    )
    for name in after.keys() - chosen:
        assert torch.equal(after[name], before[name]), name
    for name in (name for stages in TOPOLOGIES.values() for name in stages):
        for kind in ("weight", "exp_avg", "exp_avg_sq"):
            expected, found, resumed = (
                tensors(folder / run / "checkpoints/step-00000003", kind)
                for run in ("plain", name, f"{name}-resumed" if name in RESUMED else name)
            )
            assert expected.keys() == found.keys()
            for parameter, tensor in expected.items():
                assert_close(found[parameter], tensor, bounds.TRAINED, floor=1e-12, what=(name, kind, parameter))
                assert torch.equal(resumed[parameter], found[parameter]), (name, kind, parameter)


@pytest.mark.slow
def test_bfloat16(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Frozen weights are stored as what they compute with."""
    raw_config["training"] |= {"steps": 1, "trainable": CHOSEN, "precision": "bfloat16"}
    cases = [{"name": f"stage{stage}", "set": {"zero.stage": stage}} for stage in (2, 3)]
    run_workers(TRAIN_CASES, 2, {"config": raw_config, "cases": cases}, tmp_path / "workers")
    for case in cases:
        weights = tensors(Path(raw_config["run"]["directory"]) / str(case["name"]) / "checkpoints/step-00000001", "weight")
        head = weights["head.weight"]
        embedding = weights["embedding.weight"]
        assert torch.equal(embedding, embedding.bfloat16().float()) and not torch.equal(head, head.bfloat16().float())


@pytest.mark.parametrize("stage", [0, 3])
def test_planned_memory(raw_config: dict[str, Any], stage: int) -> None:
    raw_config["zero"] = {"stage": stage}
    everything = parse_config(raw_config, "test")
    raw_config["training"]["trainable"] = CHOSEN
    some = parse_config(raw_config, "test")
    before, after = (plan_memory(TrainingLayout.from_config(config, 2), on_gpu=False).device for config in (everything, some))
    model = meta_model(some.model)
    freeze(model, some.training.trainable, some.training.frozen)
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    share = sum(size for size, trained in sizes if trained) / sum(size for size, _ in sizes)
    assert 0.1 < share < 0.9
    for part in (MemoryPart.GRADIENTS, MemoryPart.MOMENTS, MemoryPart.MASTER_WEIGHTS):
        assert after[part] == pytest.approx(share * before[part], rel=0.01)  # padding
    assert after[MemoryPart.WEIGHTS] == before[MemoryPart.WEIGHTS]


def test_groups_and_patterns(raw_config: dict[str, Any]) -> None:
    model = meta_model(parse_config(raw_config, "test").model)
    freeze(model, ["embeddings", "norms", "blocks.0.mlp.*"], [])
    norms = {"norm.weight"} | {f"blocks.{layer}.{norm}_norm.weight" for layer in (0, 1) for norm in ("attention", "mlp")}
    assert trained(model) == {"embedding.weight"} | norms | {f"blocks.0.mlp.{name}.weight" for name in ("gate", "up", "down")}
    freeze(model, ["all"], [])
    assert all(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(ValueError, match="training.trainable: 'blocks.2.\\*' matches no parameter of this model: give a group"):
        check_trainable(model, ["norms", "blocks.2.*"], [])
    with pytest.raises(ValueError, match="trains the position update of block 1 only, which no later block reads"):
        check_trainable(model, ["blocks.1.position.*"], [])  # its loss has no gradient
    check_trainable(model, ["position"], [])


def test_frozen_is_taken_from_what_is_trainable(raw_config: dict[str, Any]) -> None:
    """The TAPE authors' gain, for example, which their code meant to train."""
    raw_config["training"] |= {"trainable": ["position"], "frozen": ["*.position.gain"]}
    config = parse_config(raw_config, "test")
    model = meta_model(config.model)
    freeze(model, config.training.trainable, config.training.frozen)
    kept = {f"blocks.{layer}.position.{name}" for layer in (0, 1) for name in ("content", "up", "down")}
    assert trained(model) == kept
    run_pass(Workload.from_config(config))
    for frozen, error in (
        (["*.position.gian"], "training.frozen: '\\*.position.gian' matches no parameter of this model: give a group"),
        (["blocks.*"], "training.frozen \\['blocks.\\*'\\] freezes all that .* so nothing is trained"),
    ):
        raw_config["training"]["frozen"] = frozen
        with pytest.raises(ValueError, match=error):
            run_pass(Workload.from_config(parse_config(raw_config, "test")))


def test_a_plan_where_only_the_last_layers_train(raw_config: dict[str, Any]) -> None:
    raw_config["model"]["num_layers"] = 4
    raw_config["training"]["trainable"] = ["blocks.3.*"]
    config = parse_config(raw_config, "test")
    model = meta_model(config.model)
    freeze(model, config.training.trainable, config.training.frozen)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    expected = sum(sizes[name] for name in trained(model) if ".position." not in name)  # nothing reads the last state
    assert sum(parameter.numel() for parameter in run_pass(Workload.from_config(config)).trained) == expected


def trained(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}
