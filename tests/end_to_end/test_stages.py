"""Every encoding trains the same model divided over ranks as in one process, and in bfloat16 sums gradients in float32."""

from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.registry import ENCODINGS
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.training.inputs import on_device
from megatape.training.startup.build_trainer import build_trainer
from megatape.zero.gradient_sums import GradientSums
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_data import open_run_data
from tests.helpers.runs.run_folders import compare, step_tensors
from tests.helpers.runs.training_cases import TRAIN_CASES

DIVIDED = {"zero.stage": 3, "parallel.tp": 2, "training.activation_checkpointing": "selective"}
# Encodings differ in what a checkpoint holds of them: one of each kind of parameter, and one that draws positions.
RESUMED = ("tape", "tape_vector", "t5", "fire", "randpe")

# Adam divides by the root of the second moment and so turns the rounding of a gradient near zero into a whole step. A large eps
# keeps its update smooth, and what remains after three steps is the rounding of three backward passes.
EPS = 1e-3
BFLOAT16: dict[str, dict[str, Any]] = {
    "1": {"stage": 1},
    "2": {"stage": 2},
    "3": {"stage": 3},
    "1 offload": {"stage": 1, "offload_optimizer": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


@pytest.fixture
def config(raw_config: dict[str, Any], folder: Path) -> dict[str, Any]:
    raw_config["run"]["directory"] = str(folder)
    raw_config["training"] |= {"steps": 3, "micro_batch_size": 2}
    raw_config["optimizer"]["eps"] = EPS
    raw_config["model"]["vocab_size"] = 301  # divides by no number of ranks
    return raw_config


@pytest.mark.slow
def test_every_encoding(config: dict[str, Any], folder: Path) -> None:
    """All encodings and ablations on two tensor-parallel ranks at stage 3, with selective activation checkpointing, equal one
    plain process. RESUMED do so on 2 data x 2 tensor ranks, and go on from a checkpoint bit for bit. With grouped queries, and
    masked documents for every second one."""
    config["training"] |= {"steps": 2, "global_batch_size": 4}
    options: dict[str, dict[str, Any]] = {encoding: {"model.encoding": encoding} for encoding in ENCODINGS}
    options["tape_yarn"] = {"model.scaling": {"kind": "yarn", "factor": 4.0, "original_length": 16}}
    plain = []
    on_two = []
    on_four = []
    resumed = []
    for number, (option, changes) in enumerate(options.items()):
        shared = changes | {"model.num_kv_heads": 4, "data.mask_documents": number % 2 == 1}
        plain.append({"name": f"one/{option}", "set": shared | {"zero.stage": 0}})
        case = {"name": f"divided/{option}", "set": shared | DIVIDED}
        first = folder / "divided" / option / "checkpoints" / "step-00000001"
        if option in RESUMED:
            resumed.append(case | {"name": f"resumed/{option}", "resume": str(first)})
            on_four.append(case | {"set": case["set"] | {"checkpoint.interval": 1, "checkpoint.keep": 2}})
        else:
            on_two.append(case)
    for world_size, cases in ((1, plain), (2, on_two), (4, on_four + resumed)):
        results = run_workers(
            TRAIN_CASES, world_size, {"config": config, "cases": cases}, folder / f"workers-encodings-{world_size}", 600
        )
        assert [result.get("error") for result in results[0]] == [None] * len(cases)
    for option in options:
        compare(folder / "one" / option, folder / "divided" / option, step=2)
    for option in RESUMED:
        for kind in ("weight", "exp_avg", "exp_avg_sq"):
            straight, other = (step_tensors(folder / run / option, kind, step=2) for run in ("divided", "resumed"))
            assert all(torch.equal(other[name], tensor) for name, tensor in straight.items()), (option, kind)


def test_bfloat16_accumulates_in_float32(config: dict[str, Any], folder: Path) -> None:
    """16 micro-batches of one sample give the gradient of that sample, exactly: a sum of 16 equal numbers is not rounded in
    float32.

    The first moment after one step is the gradient. Summed in bfloat16 it would be off by the rounding of the running sum."""
    config["training"] |= {"precision": "bfloat16", "micro_batch_size": 1, "gradient_clip": 0.0}
    config["run"]["directory"] = str(folder / "bfloat16")
    run_workers("tests.end_to_end.test_stages:train_on_one_sample", 1, config, folder / "workers-bfloat16")
    for stage in BFLOAT16:
        once, often = (
            step_tensors(folder / "bfloat16" / f"{stage}-{repetitions}", "exp_avg", step=0) for repetitions in (1, 16)
        )
        for name, tensor in once.items():
            assert torch.equal(often[name], tensor), (stage, name)
        assert once["head.weight"].any()


def train_on_one_sample(config: dict[str, Any], topology: Topology) -> None:
    """At each of BFLOAT16, one step on nothing but the first sample, in one micro-batch and in 16, and a checkpoint."""
    for stage, zero in BFLOAT16.items():
        for repetitions in (1, 16):
            raw = config | {"zero": zero, "training": config["training"] | {"global_batch_size": repetitions}}
            parsed = parse_config(raw | {"run": {"directory": f"{config['run']['directory']}/{stage}-{repetitions}"}}, "test")
            run = build_trainer(parsed, open_run_data(parsed), topology, Lease(RunFolder(Path(parsed.run.directory)).lease))
            sample = run.stepper.prefetcher.get(0).batches[0]
            inputs = [on_device(sample, run.engine.device)] * repetitions
            passes = run.engine.forward_backward(inputs, repetitions * sample.num_targets)
            sums = GradientSums(*run.engine.sum_over_ranks(*passes.sums))
            run.engine.update(1e-3, sums.loss, sums)
            run.checkpoints.ensure_saved()
