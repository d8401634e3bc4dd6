"""Every encoding trains the same model sharded over ranks as in one process, and in bfloat16 sums gradients in float32."""

from pathlib import Path
from typing import Any

import pytest

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.registry import ENCODINGS
from megatape.run_folder import RunFolder
from megatape.zero.passes.pass_result import GradientSums
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.case_runs import assert_no_errors, run_cases
from tests.helpers.runs.run_folders import KINDS, assert_identical, compare, step_tensors
from tests.helpers.runs.trainers import trainer_without_lease

SHARDED = {"zero.stage": 3, "parallel.tp": 2, "training.activation_checkpointing": "selective"}
# Encodings differ in what checkpoints hold: one for each kind of parameter, and one drawing positions
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
REPETITIONS = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


@pytest.fixture
def config(raw_config: dict[str, Any], folder: Path) -> dict[str, Any]:
    raw_config["run"]["directory"] = str(folder)
    raw_config["training"] |= {"steps": 3, "micro_batch_size": 2}
    raw_config["optimizer"]["eps"] = EPS
    # Not divisible by any number of ranks
    raw_config["model"]["vocab_size"] = 301
    return raw_config


@pytest.mark.slow
def test_every_encoding(config: dict[str, Any], folder: Path) -> None:
    """All encodings and ablations on two tensor-parallel ranks at stage 3, with selective activation checkpointing.

    They equal one plain process. RESUMED do so on 2 data x 2 tensor ranks, and continue from a checkpoint bit for bit. All
    have grouped queries, and every second one masks documents.
    """
    config["training"] |= {"steps": 2, "global_batch_size": 4}
    options: dict[str, dict[str, Any]] = {encoding: {"model.encoding": encoding} for encoding in ENCODINGS}
    options["tape_yarn"] = {"model.scaling": {"kind": "yarn", "factor": 4.0, "original_length": 16}}
    on_one: list[dict[str, Any]] = []
    on_two: list[dict[str, Any]] = []
    on_four: list[dict[str, Any]] = []
    resumed: list[dict[str, Any]] = []
    for number, (option, changes) in enumerate(options.items()):
        shared = changes | {"model.num_kv_heads": 4, "data.mask_documents": number % 2 == 1}
        sharded = shared | SHARDED
        on_one.append({"name": f"one/{option}", "set": shared | {"zero.stage": 0}})
        name = f"sharded/{option}"
        if option in RESUMED:
            on_four.append({"name": name, "set": sharded | {"checkpoint.interval": 1, "checkpoint.keep": 2}})
            checkpoint = RunFolder(folder / name).checkpoint(1)
            resumed.append({"name": f"resumed/{option}", "set": sharded, "resume": str(checkpoint)})
        else:
            on_two.append({"name": name, "set": sharded})

    for num_ranks, cases in ((1, on_one), (2, on_two), (4, on_four + resumed)):
        assert_no_errors(run_cases(config, cases, num_ranks, folder / f"workers-encodings-{num_ranks}", timeout=600))

    for option in options:
        compare(folder / "one" / option, folder / "sharded" / option, step=2)
    for option in RESUMED:
        for kind in KINDS:
            straight = step_tensors(folder / "sharded" / option, kind, step=2)
            assert_identical(step_tensors(folder / "resumed" / option, kind, step=2), straight, (option, kind))


def test_bfloat16_accumulates_in_float32(config: dict[str, Any], folder: Path) -> None:
    """16 micro-batches of one sample give the gradient of that sample: float32 does not round a sum of 16 equal numbers.

    The first moment after one step is the gradient. Summed in bfloat16 it would be off by the rounding of the running sum.
    """
    config["training"] |= {"precision": "bfloat16", "micro_batch_size": 1, "gradient_clip": 0.0}
    config["run"]["directory"] = str(folder / "bfloat16")

    run_workers("tests.end_to_end.test_stages:train_on_one_sample", 1, config, folder / "workers-bfloat16")

    for stage in BFLOAT16:
        once = step_tensors(folder / "bfloat16" / f"{stage}-1", "exp_avg", step=0)
        repeated = step_tensors(folder / "bfloat16" / f"{stage}-{REPETITIONS}", "exp_avg", step=0)
        assert_identical(repeated, once, stage)
        assert once["head.weight"].any()


def train_on_one_sample(config: dict[str, Any], topology: Topology) -> None:
    """For each entry of BFLOAT16, train a step on the first sample, in one micro-batch and in 16, and save a checkpoint."""
    root = config["run"]["directory"]
    for stage, zero in BFLOAT16.items():
        for repetitions in (1, REPETITIONS):
            raw = config | {
                "run": {"directory": f"{root}/{stage}-{repetitions}"},
                "zero": zero,
                "training": config["training"] | {"global_batch_size": repetitions},
            }
            run = trainer_without_lease(parse_config(raw, "test"), topology)
            sample = run.stepper.prefetcher.get(0).batches[0]
            inputs = [sample.inputs_on(run.engine.device)] * repetitions
            passes = run.engine.forward_backward(inputs, repetitions * sample.num_targets)
            sums = GradientSums(*run.engine.sum_over_ranks(*passes.sums))
            run.engine.update(1e-3, sums.loss, sums)
            run.checkpoints.ensure_saved()
