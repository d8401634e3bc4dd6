"""The planner's command: what it prints, its advice, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megatape.config import ClusterConfig
from megatape.plan.gpus import GPUS, load_gpu
from megatape.plan.report import plan
from tests.plan.cases import configure
from tests.workers import ROOT


def run(config: dict[str, Any], folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    command = [sys.executable, "launch/plan.py", "--config", str(path), *options]
    return subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120)


def test_command(raw_config: dict[str, Any], tmp_path: Path) -> None:
    gpu = {"name": "X", "memory": 8e9, "bfloat16_flops": 1e14, "memory_bandwidth": 1e12, "node_bandwidth": 1e11}
    (tmp_path / "x.json").write_text(json.dumps(gpu | {"network_bandwidth": 1e10}))
    raw_config["cluster"] = {"nodes": 3, "gpus_per_node": 1, "gpu": "h100"}
    raw_config["parallel"] = {"tp": 2}
    options = ("--nodes", "2", "--gpus-per-node", "2", "--gpu", str(tmp_path / "x.json"))
    result = run(raw_config, tmp_path, *options)
    assert result.returncode == 0, result.stderr
    for text in ("2 nodes x 2", "8 = 2 micro x 2 data ranks x 2 accumulated", "fits", "all-to-all", "MFU", "assumed:"):
        assert text in result.stdout, text


def test_what_it_refuses(raw_config: dict[str, Any], tmp_path: Path) -> None:
    assert "cluster section: give --nodes, --gpus-per-node and --gpu" in run(raw_config, tmp_path).stderr
    cluster = ("--nodes", "1", "--gpus-per-node", "2", "--gpu")
    for gpu, message in (
        ("h9000", "GPU 'h9000' is not known: choose one of a100-40g"),
        ("none.json", "no GPU description at none.json"),
        (str(tmp_path / "config.json"), "does not describe a GPU"),
    ):
        result = run(raw_config, tmp_path, *cluster, gpu)
        assert result.returncode == 2 and message in result.stderr, result.stderr
    result = run(raw_config, tmp_path, *cluster, "h100", "--set", "parallel.tp=4")
    assert "parallel.tp 4 and 2 GPUs" not in result.stderr and "whole groups of parallel.tp 4" in result.stderr
    result = run(raw_config, tmp_path, "--nodes", "2", "--gpus-per-node", "3", "--gpu", "h100", "--set", "parallel.tp=2")
    assert "parallel.tp 2 and 3 GPUs per node" in result.stderr


def test_advice_leads_to_a_plan_that_fits(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """A model that is too large for the GPU: the last piece of advice, with those before it, makes it fit."""
    shape = {"hidden_size": 1024, "mlp_size": 4096, "num_heads": 8, "num_layers": 8, "vocab_size": 20000, "max_positions": 512}
    changes = {f"model.{key}": value for key, value in shape.items()} | {
        "data.sequence_length": 512,
        "training.micro_batch_size": 8,
    }
    changes |= {"zero.stage": 1, "zero.bucket_size": 1_000_000}
    config = configure(raw_config, "x", changes)
    small = load_gpu("h100").model_copy(update={"memory": 4 * 2**30})
    (tmp_path / "small.json").write_text(small.model_dump_json())
    cluster = ClusterConfig(nodes=1, gpus_per_node=1, gpu=str(tmp_path / "small.json"))
    text = plan(config, cluster)
    assert "DOES NOT FIT" in text
    advice = [line.split()[1] for line in text.splitlines() if line.startswith("  --set ")]
    assert text.splitlines()[-1].endswith(", fits"), text
    advised = dict(item.rstrip(":").split("=") for item in advice)
    fitting = configure(raw_config, "x", changes | {key: json.loads(value) for key, value in advised.items()})
    assert "DOES NOT FIT" not in plan(fitting, cluster)


@pytest.mark.parametrize("name", GPUS)
def test_gpus_are_plausible(name: str) -> None:
    """A slip of a power of ten in the table would pass all other tests."""
    gpu = load_gpu(name)
    assert 30 * 2**30 < gpu.memory < 300 * 2**30
    assert 1e14 < gpu.bfloat16_flops < 1e16
    assert gpu.network_bandwidth < gpu.node_bandwidth * 1.001 < gpu.memory_bandwidth
