"""Matrix products in FP8: training, settings they refuse, and agreement between ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.errors import UserError
from megatape.nn.linear_function import linear
from megatape.run_folder import RunFolder, read_steps
from megatape.training.startup.engine.working_kernels import working_linear_function
from tests.helpers.checks import bounds
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.training_cases import TRAIN_CASES


@pytest.fixture
def fp8_config(raw_config: dict[str, Any]) -> dict[str, Any]:
    raw_config["model"]["mlp_size"] = 48
    raw_config["training"] |= {"precision": "bfloat16", "fp8": "tensorwise"}
    raw_config["zero"] = {"stage": 2}
    return raw_config


@pytest.mark.fp8
@pytest.mark.slow
def test_fp8_learns_like_bfloat16(fp8_config: dict[str, Any], tmp_path: Path) -> None:
    fp8_config["training"] |= {"steps": 12, "activation_checkpointing": "selective"}
    fp8_config["optimizer"]["learning_rate"] = 5e-3
    cases = [{"name": recipe, "set": {"training.fp8": recipe}} for recipe in ("none", "tensorwise")]
    (started,) = run_workers(TRAIN_CASES, 1, {"config": fp8_config, "cases": cases}, tmp_path / "workers")
    assert not any("error" in case for case in started), started
    without, ours = (list(read_steps(RunFolder(tmp_path / "run" / str(case["name"])).metrics)) for case in cases)
    losses, expected = ([entry["loss"] for entry in run] for run in (ours, without))
    bounds.assert_close(losses, expected, bounds.FP8_LOSSES)
    bounds.assert_close([ours[0]["grad_norm"]], [without[0]["grad_norm"]], bounds.FP8_NORM)
    assert losses != expected
    assert losses[-1] < losses[0] - 1


@pytest.mark.parametrize(
    ("section", "values", "told"),
    [
        (
            "training",
            {"precision": "float32"},
            "training.fp8 tensorwise does not support training.precision float32: choose bfloat16",
        ),
        ("zero", {"stage": 3}, "training.fp8 tensorwise does not support zero.stage 3, which frees the weights"),
        ("parallel", {"tp": 2}, "training.fp8 tensorwise does not support parallel.tp 2, whose ranks"),
        ("training", {"trainable": ["norms"]}, "training.fp8 tensorwise does not support frozen weights"),
        ("training", {"frozen": ["*.position.gain"]}, "training.fp8 tensorwise does not support frozen weights"),
        (
            "model",
            {"lora": {"rank": 2, "alpha": 2.0, "targets": ["query"]}},
            "fp8 tensorwise does not support model.lora",
        ),
        ("model", {"hidden_size": 40, "head_dim": 4}, "model.hidden_size 40 is not a multiple of 16, which FP8 products need"),
        ("model", {"num_kv_heads": 2}, "model.num_kv_heads x model.head_dim 8 is not a multiple of 16"),
        ("model", {"mlp_size": 40}, "model.mlp_size 40 is not a multiple of 16"),
        ("data", {"length_warmup": [{"tokens": 9, "length": 2}]}, "data.length_warmup 2: a rank's micro-batch has 8 tokens"),
    ],
    ids=str,
)
def test_refused_settings(fp8_config: dict[str, Any], section: str, values: dict[str, Any], told: str) -> None:
    if "lora" in values:
        fp8_config["training"]["trainable"] = ["adapters"]
    fp8_config[section] = fp8_config.get(section, {}) | values
    with pytest.raises(ValueError, match=told):
        parse_config(fp8_config, "test")


@pytest.mark.fp8
def test_fp8_works_on_all_ranks_or_none(
    fp8_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rank without torchao ends the run on all ranks. On a CPU, the log says that FP8 is emulated."""
    config = parse_config(fp8_config, "test")
    topology = Topology(rank=0, world_size=2, local_rank=0)
    for fault in (None, UserError("torchao cannot be imported")):
        monkeypatch.setattr(
            "megatape.distributed.values.exchange.gather_values", lambda mine, *_, fault=fault: [mine, [None, fault]]
        )
        if fault:
            with pytest.raises(ValueError, match="training.fp8 tensorwise does not work: rank 1: torchao cannot be imported"):
                working_linear_function(config.training.fp8, torch.device("cpu"), topology)
        else:
            assert working_linear_function(config.training.fp8, torch.device("cpu"), topology) is not linear
            assert "training.fp8 tensorwise is emulated on a CPU" in capsys.readouterr().out
