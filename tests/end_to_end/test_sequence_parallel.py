"""Ranks that divide the tokens of a sample, sequence- or context-parallel, train the same model as one plain process."""

import os
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import pytest

from megatape.registry import ENCODINGS
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import compare, step_tensors
from tests.helpers.runs.training_cases import TRAIN_CASES

# Each option is trained plain, at stage 0 on one process, and compared with divided samples.
OPTIONS: dict[str, dict[str, Any]] = {
    "tape": {"model.num_kv_heads": 4, "model.attention_bias": "qkvo", "model.qk_norm": True},
    "rope": {"model.encoding": "rope", "data.mask_documents": True, "training.micro_batch_size": 1},
    "t5": {"model.encoding": "t5", "model.tie_embeddings": True, "training.activation_checkpointing": "full"},
    "nope": {"model.encoding": "nope", "model.num_kv_heads": 4, "training.activation_checkpointing": "selective"},
    "documents": {"data.mask_documents": True, "model.num_kv_heads": 4, "training.activation_checkpointing": "full"},
    "alibi": {"model.encoding": "alibi", "training.micro_batch_size": 4},
    "shifted": {"model.encoding": "rope", "training.num_shifted_groups": 2, "model.num_kv_heads": 4},
    "lora": {
        "model.lora": {"rank": 3, "alpha": 3.0, "dropout": 0.1, "targets": ["query", "output", "down"]},
        "training.trainable": ["adapters", "norms"],
    },
}
STAGES: dict[str, dict[str, Any]] = {
    "stage0": {"zero.stage": 0},
    "stage1": {"zero.stage": 1},
    "stage2": {"zero.stage": 2},
    "stage2_offload": {"zero.stage": 2, "zero.offload_optimizer": True},
    "stage3": {"zero.stage": 3},
    "stage3_offload": {"zero.stage": 3, "zero.offload_optimizer": True, "zero.offload_parameters": True},
}
SIZES = [(1, 2, 1), (1, 4, 1), (2, 2, 1), (1, 2, 2)]  # (D, S, T)
FEW = {"tape": "stage3", "rope": "stage0", "t5": "stage2", "nope": "stage1"}

# Context-parallel ranks compute no bias on scores, and do not shift groups.
CONTEXT_OPTIONS = ("tape", "rope", "nope", "documents", "lora")
CONTEXT_SIZES = [(1, 1, 1, 2), (1, 1, 1, 4), (1, 2, 1, 2), (1, 1, 2, 2), (2, 1, 1, 2)]  # (D, S, T, C)
CONTEXT_FEW = {"tape": "stage3", "documents": "stage2", "rope": "stage0", "lora": "stage1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sequence")


@pytest.fixture
def config(raw_config: dict[str, Any], folder: Path) -> dict[str, Any]:
    raw_config["run"]["directory"] = str(folder)
    raw_config["training"] |= {"steps": 3, "micro_batch_size": 2}
    raw_config["optimizer"]["eps"] = 1e-3  # as in test_stages.py
    raw_config["model"]["vocab_size"] = 301  # divides by no number of ranks
    return raw_config


def topology(data: int, sequence: int, tensor: int, context: int = 1) -> dict[str, Any]:
    return {"parallel.sp": sequence, "parallel.tp": tensor, "parallel.cp": context}


def train(
    config: dict[str, Any], folder: Path, world_size: int, cases: list[dict[str, Any]], function: str = TRAIN_CASES
) -> None:
    results = run_workers(function, world_size, {"config": config, "cases": cases}, folder / f"workers-{world_size}", 580)
    assert [result.get("error") for result in results[0]] == [None] * len(cases)


@pytest.mark.numerics
def test_equal_to_plain(config: dict[str, Any], folder: Path) -> None:
    """Samples, losses, gradient norms, and weights and moments after three steps.

    It fails if gradients are averaged over the ranks of a sample, if a rank begins its positions, its documents or its targets
    anew, and if it takes the weights of other heads."""
    check(config, folder, (2, 2, 1), list(FEW.items()))


@pytest.mark.numerics
@pytest.mark.parametrize("sizes", [(2, 1, 1, 2), pytest.param((1, 1, 1, 4), marks=pytest.mark.slow)], ids=str)
def test_context_equal_to_plain(config: dict[str, Any], folder: Path, sizes: tuple[int, ...]) -> None:
    """The same of context-parallel ranks, some of which divide the data, too.

    It fails if a rank takes its chunks, their positions, documents or dropout for a sample from the beginning, if the sums of
    weights of two ranks are not merged by their largest scores, and if gradients of keys end at the wrong rank."""
    check(config, folder, sizes, list(CONTEXT_FEW.items()))


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.parametrize("sizes", [*SIZES, *CONTEXT_SIZES], ids=str)
def test_every_pair(config: dict[str, Any], folder: Path, sizes: tuple[int, ...]) -> None:
    """Each option at two stages on ranks of each size, so that every two of the three meet somewhere."""
    options = CONTEXT_OPTIONS if sizes in CONTEXT_SIZES else tuple(OPTIONS)
    number = [*SIZES, *CONTEXT_SIZES].index(sizes)
    stages = list(STAGES)
    pairs = [(name, stages[(number + option + half) % 6]) for option, name in enumerate(options) for half in (0, 3)]
    check(config, folder, sizes, list(product(options, STAGES)) if os.environ.get("MEGATAPE_ALL_LAYOUTS") else pairs)


def check(config: dict[str, Any], folder: Path, sizes: tuple[int, ...], chosen: list[tuple[str, str]]) -> None:
    """Train options at stages on ranks of these sizes, and compare with plain runs."""
    plain = [option for option in dict(chosen) if not (folder / "plain" / option).exists()]
    train(config, folder, 1, [{"name": f"plain/{option}", "set": OPTIONS[option] | STAGES["stage0"]} for option in plain])
    names = {f"{sizes}/{option}-{stage}": (option, stage) for option, stage in chosen}
    cases = [
        {"name": name, "set": OPTIONS[option] | STAGES[stage] | topology(*sizes)}
        for name, (option, stage) in names.items()
        if not (folder / name).exists()  # by a test before
    ]
    train(config, folder, prod(sizes), cases)
    for name, (option, _) in names.items():
        compare(folder / "plain" / option, folder / name)


@pytest.mark.slow
@pytest.mark.numerics
def test_every_encoding(config: dict[str, Any], folder: Path) -> None:
    """On 2 sequence- x 2 tensor-parallel ranks at stage 3 with grouped queries, and masked documents for every second one."""
    config["training"] |= {"steps": 2, "global_batch_size": 4}
    plain = []
    divided = []
    for number, encoding in enumerate(ENCODINGS):
        changes = {"model.encoding": encoding, "model.num_kv_heads": 4, "data.mask_documents": number % 2 == 0}
        plain.append({"name": f"one/{encoding}", "set": changes | STAGES["stage0"]})
        divided.append({"name": f"divided/{encoding}", "set": changes | STAGES["stage3"] | topology(1, 2, 2)})
    train(config, folder, 1, plain)
    train(config, folder, 4, divided)
    for encoding in ENCODINGS:
        compare(folder / "one" / encoding, folder / "divided" / encoding, step=2)


@pytest.mark.numerics
def test_sums_along_the_sequence(config: dict[str, Any], folder: Path) -> None:
    """A stand-in for encodings that need them exchanges the states before the chunks of two context-parallel ranks."""
    function = "tests.helpers.models.accumulated:train"
    divided = STAGES["stage2"] | topology(1, 1, 1, 2)
    config["model"]["encoding"] = "accumulated"
    train(config, folder, 1, [{"name": "plain/accumulated", "set": STAGES["stage0"]}], function)
    train(config, folder, 2, [{"name": "divided/accumulated", "set": divided}], function)
    compare(folder / "plain" / "accumulated", folder / "divided" / "accumulated")


@pytest.mark.slow
@pytest.mark.numerics
def test_checkpoints_move(config: dict[str, Any], folder: Path) -> None:
    """From two sequence-parallel ranks at stage 3 to one process at stage 1, to two context-parallel ones, and back to the
    first: the same run as that of one process."""
    config["checkpoint"] = {"interval": 1, "keep": 4}
    config["training"]["steps"] = 4
    ring = topology(1, 1, 1, 2) | STAGES["stage2"]
    divided = topology(1, 2, 1) | STAGES["stage3"]
    alone = topology(1, 1, 1) | STAGES["stage1"]

    def step(run: str, number: int) -> str:
        return str(folder / run / "checkpoints" / f"step-{number:08d}")

    train(config, folder, 1, [{"name": "whole", "set": STAGES["stage0"]}])
    train(config, folder, 2, [{"name": "divided", "set": divided}])
    train(config, folder, 1, [{"name": "alone", "set": alone, "resume": step("divided", 1)}])
    train(config, folder, 2, [{"name": "ring", "set": ring, "resume": step("alone", 2)}])
    train(config, folder, 2, [{"name": "back", "set": divided, "resume": step("ring", 3)}])
    for run in ("alone", "ring", "back"):
        for kind in ("weight", "exp_avg", "exp_avg_sq"):
            expected, found = (step_tensors(folder / name, kind, step=4) for name in ("whole", run))
            assert expected.keys() == found.keys()
            for name, tensor in expected.items():
                assert_close(found[name], tensor, bounds.TRAINED, floor=1e-12, what=(run, kind, name))
