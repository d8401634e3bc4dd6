"""Runs with FP8 products: they learn as runs without do; and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.config import parse_config
from megatape.run_folder import RunFolder, read_steps
from megatape.runtime.topology import Topology
from megatape.training.fp8 import working_product
from tests.helpers import bounds
from tests.helpers.workers import run_workers


@pytest.fixture
def fp8_config(raw_config: dict[str, Any]) -> dict[str, Any]:
    raw_config["model"]["mlp_size"] = 48
    raw_config["training"] |= {"precision": "bfloat16", "fp8": "tensorwise"}
    raw_config["zero"] = {"stage": 2}
    return raw_config


@pytest.mark.fp8
@pytest.mark.slow
def test_learns_as_without(fp8_config: dict[str, Any], tmp_path: Path) -> None:
    fp8_config["training"] |= {"steps": 12, "activation_checkpointing": "selective"}
    fp8_config["optimizer"]["learning_rate"] = 5e-3
    cases = [{"name": recipe, "set": {"training.fp8": recipe}} for recipe in ("none", "tensorwise")]
    (started,) = run_workers(
        "tests.helpers.training_cases:train_cases", 1, {"config": fp8_config, "cases": cases}, tmp_path / "workers"
    )
    assert not any("error" in case for case in started), started
    without, ours = (list(read_steps(RunFolder(tmp_path / "run" / str(case["name"])).metrics)) for case in cases)
    losses, expected = ([entry["loss"] for entry in run] for run in (ours, without))
    bounds.assert_close(losses, expected, bounds.FP8_LOSSES)
    bounds.assert_close([ours[0]["grad_norm"]], [without[0]["grad_norm"]], bounds.FP8_NORM)
    assert losses != expected and losses[-1] < losses[0] - 1


@pytest.mark.parametrize(
    ("section", "values", "told"),
    [
        (
            "training",
            {"precision": "float32"},
            "training.fp8 tensorwise is not for training.precision float32: choose bfloat16",
        ),
        ("zero", {"stage": 3}, "training.fp8 tensorwise is not for zero.stage 3, which frees the weights"),
        ("parallel", {"tp": 2}, "training.fp8 tensorwise is not for parallel.tp 2, whose ranks"),
        ("training", {"trainable": ["norms"]}, "training.fp8 tensorwise is not for frozen weights"),
        ("training", {"frozen": ["*.position.gain"]}, "training.fp8 tensorwise is not for frozen weights"),
        ("model", {"lora": {"rank": 2, "alpha": 2.0, "targets": ["query"]}}, "training.fp8 tensorwise is not for model.lora"),
        ("model", {"hidden_size": 40, "head_dim": 4}, "model.hidden_size 40 is not a multiple of 16, which FP8 products need"),
        ("model", {"num_kv_heads": 2}, "model.num_kv_heads x model.head_dim 8 is not a multiple of 16"),
        ("model", {"mlp_size": 40}, "model.mlp_size 40 is not a multiple of 16"),
        ("data", {"length_warmup": [{"tokens": 9, "length": 2}]}, "tokens of a micro-batch, 8 is not a multiple of 16"),
    ],
    ids=str,
)
def test_what_is_refused(fp8_config: dict[str, Any], section: str, values: dict[str, Any], told: str) -> None:
    if "lora" in values:
        fp8_config["training"]["trainable"] = ["adapters"]
    fp8_config[section] = fp8_config.get(section, {}) | values
    with pytest.raises(ValueError, match=told):
        parse_config(fp8_config, "test")


@pytest.mark.fp8
def test_all_ranks_can_or_none(
    fp8_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One rank without torchao ends the run on all; a CPU says that it emulates."""
    config, topology = parse_config(fp8_config, "test"), Topology(rank=0, world_size=2, local_rank=0)
    for fault in (None, ["megatape.errors:UserError", "torchao cannot be imported", None]):
        monkeypatch.setattr("megatape.runtime.exchange.exchange", lambda mine, *_, fault=fault: [mine, [None, fault]])
        if fault:
            with pytest.raises(ValueError, match="training.fp8 tensorwise does not work: rank 1: torchao cannot be imported"):
                working_product(config, torch.device("cpu"), topology)
        else:
            assert working_product(config, torch.device("cpu"), topology) is not None
            assert "training.fp8 tensorwise is emulated on a CPU" in capsys.readouterr().out
