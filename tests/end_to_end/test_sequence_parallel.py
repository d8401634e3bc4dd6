"""Ranks that split the tokens of a sample, sequence- or context-parallel, train the same model as one plain process."""

import os
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from megatape.registry import ENCODINGS
from megatape.run_folder import RunFolder
from tests.helpers.checks import bounds
from tests.helpers.runs.case_runs import assert_no_errors, run_cases
from tests.helpers.runs.run_folders import KINDS, assert_all_close, compare, step_tensors
from tests.helpers.runs.training_cases import TRAIN_CASES


class Sizes(NamedTuple):
    """Data-, sequence-, tensor- and context-parallel ranks."""

    data: int = 1
    sequence: int = 1
    tensor: int = 1
    context: int = 1

    @property
    def num_ranks(self) -> int:
        return self.data * self.sequence * self.tensor * self.context

    @property
    def settings(self) -> dict[str, Any]:
        return {"parallel.sp": self.sequence, "parallel.tp": self.tensor, "parallel.cp": self.context}

    @property
    def name(self) -> str:
        return f"D{self.data} S{self.sequence} T{self.tensor} C{self.context}"


# Each option is trained plain, at stage 0 on one process, and compared with split samples.
OPTIONS: dict[str, dict[str, Any]] = {
    "tape": {"model.num_kv_heads": 4, "model.attention_bias": "qkvo", "model.qk_norm": True},
    "rope": {"model.encoding": "rope", "data.mask_documents": True, "training.micro_batch_size": 1},
    "t5": {"model.encoding": "t5", "model.tie_embeddings": True, "training.activation_checkpointing": "full"},
    "nope": {"model.encoding": "nope", "model.num_kv_heads": 4, "training.activation_checkpointing": "selective"},
    "repo": {"model.encoding": "repo", "model.num_kv_heads": 4},
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
SEQUENCE_SIZES = [
    Sizes(sequence=2),
    Sizes(sequence=4),
    Sizes(data=2, sequence=2),
    Sizes(sequence=2, tensor=2),
]
QUICK_PAIRS = [("tape", "stage3"), ("rope", "stage0"), ("t5", "stage2"), ("nope", "stage1")]

# Context-parallel ranks compute no bias on scores, and do not shift groups.
CONTEXT_OPTIONS = ("tape", "rope", "repo", "nope", "documents", "lora")
CONTEXT_SIZES = [
    Sizes(context=2),
    Sizes(context=4),
    Sizes(sequence=2, context=2),
    Sizes(tensor=2, context=2),
    Sizes(data=2, context=2),
]
QUICK_CONTEXT_PAIRS = [("tape", "stage3"), ("documents", "stage2"), ("rope", "stage0"), ("lora", "stage1")]
ALL_SIZES = [*SEQUENCE_SIZES, *CONTEXT_SIZES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sequence")


@pytest.fixture
def config(raw_config: dict[str, Any], folder: Path) -> dict[str, Any]:
    raw_config["run"]["directory"] = str(folder)
    raw_config["training"] |= {"steps": 3, "micro_batch_size": 2}
    # A large eps keeps Adam's updates smooth (see test_stages.py).
    raw_config["optimizer"]["eps"] = 1e-3
    # Not divisible by any number of ranks
    raw_config["model"]["vocab_size"] = 301
    return raw_config


def train(config: dict[str, Any], folder: Path, num_ranks: int, cases: list[dict[str, Any]], target: str = TRAIN_CASES) -> None:
    logs = folder / f"workers-{num_ranks}"
    assert_no_errors(run_cases(config, cases, num_ranks, logs, target=target, timeout=580))


@pytest.mark.numerics
def test_sequence_parallel_equals_plain(config: dict[str, Any], folder: Path) -> None:
    """Samples, losses, gradient norms, and weights and moments after three steps.

    Fails if gradients are averaged over the ranks of a sample, if a rank starts its positions, its documents or its targets
    anew, and if it takes the weights of other heads.
    """
    check(config, folder, Sizes(data=2, sequence=2), QUICK_PAIRS)


@pytest.mark.numerics
@pytest.mark.parametrize(
    "sizes",
    [Sizes(data=2, context=2), pytest.param(Sizes(context=4), marks=pytest.mark.slow)],
    ids=lambda sizes: sizes.name,
)
def test_context_parallel_equals_plain(config: dict[str, Any], folder: Path, sizes: Sizes) -> None:
    """Context-parallel ranks train like one process, also beside ranks that read other samples.

    Fails if a rank takes its chunks, their positions, documents or dropout for a sample from the beginning, if the sums of
    weights of two ranks are not merged by their largest scores, and if gradients of keys end at the wrong rank.
    """
    check(config, folder, sizes, QUICK_CONTEXT_PAIRS)


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.parametrize("sizes", ALL_SIZES, ids=lambda sizes: sizes.name)
def test_every_pair(config: dict[str, Any], folder: Path, sizes: Sizes) -> None:
    """Each option at two stages on ranks of each size, so that every two of the three meet somewhere."""
    options = tuple(OPTIONS)
    if sizes.context > 1:
        options = CONTEXT_OPTIONS
    if os.environ.get("MEGATAPE_ALL_LAYOUTS"):
        check(config, folder, sizes, list(product(options, STAGES)))
        return

    stages = list(STAGES)
    first_stage = ALL_SIZES.index(sizes)
    pairs = []
    for number, option in enumerate(options):
        for distance in (0, 3):
            stage = stages[(first_stage + number + distance) % len(stages)]
            pairs.append((option, stage))
    check(config, folder, sizes, pairs)


def check(config: dict[str, Any], folder: Path, sizes: Sizes, pairs: list[tuple[str, str]]) -> None:
    """Train options at stages on ranks of these sizes, and compare with plain runs. Runs of earlier tests are used again."""
    plain: list[dict[str, Any]] = []
    for option in dict(pairs):
        if not (folder / "plain" / option).exists():
            plain.append({"name": f"plain/{option}", "set": OPTIONS[option] | STAGES["stage0"]})
    split: list[dict[str, Any]] = []
    for option, stage in pairs:
        name = f"{sizes.name}/{option}-{stage}"
        if not (folder / name).exists():
            split.append({"name": name, "set": OPTIONS[option] | STAGES[stage] | sizes.settings})

    train(config, folder, 1, plain)
    train(config, folder, sizes.num_ranks, split)

    for option, stage in pairs:
        compare(folder / "plain" / option, folder / sizes.name / f"{option}-{stage}")


@pytest.mark.slow
@pytest.mark.numerics
def test_every_encoding(config: dict[str, Any], folder: Path) -> None:
    """2 sequence- x 2 tensor-parallel ranks at stage 3 use grouped queries, and every second encoding masks documents."""
    config["training"] |= {"steps": 2, "global_batch_size": 4}
    sizes = Sizes(sequence=2, tensor=2)
    plain = []
    split = []
    for number, encoding in enumerate(ENCODINGS):
        changes = {"model.encoding": encoding, "model.num_kv_heads": 4, "data.mask_documents": number % 2 == 0}
        plain.append({"name": f"one/{encoding}", "set": changes | STAGES["stage0"]})
        split.append({"name": f"split/{encoding}", "set": changes | STAGES["stage3"] | sizes.settings})

    train(config, folder, 1, plain)
    train(config, folder, sizes.num_ranks, split)

    for encoding in ENCODINGS:
        compare(folder / "one" / encoding, folder / "split" / encoding, step=2)


@pytest.mark.numerics
def test_sums_along_the_sequence(config: dict[str, Any], folder: Path) -> None:
    """A stand-in for encodings that need them exchanges the states before the chunks of two context-parallel ranks."""
    target = "tests.helpers.models.accumulated:train"
    config["model"]["encoding"] = "accumulated"
    split = STAGES["stage2"] | Sizes(context=2).settings

    train(config, folder, 1, [{"name": "plain/accumulated", "set": STAGES["stage0"]}], target)
    train(config, folder, 2, [{"name": "split/accumulated", "set": split}], target)

    compare(folder / "plain" / "accumulated", folder / "split" / "accumulated")


@pytest.mark.slow
@pytest.mark.numerics
def test_checkpoints_move(config: dict[str, Any], folder: Path) -> None:
    """A run that moves between layouts equals a run of one process.

    It moves from two sequence-parallel ranks at stage 3 to one process at stage 1, to two context-parallel ranks, and back to
    the first layout.
    """
    config["checkpoint"] = {"interval": 1, "keep": 4}
    config["training"]["steps"] = 4
    sequence = Sizes(sequence=2).settings | STAGES["stage3"]
    one_process = Sizes().settings | STAGES["stage1"]
    context = Sizes(context=2).settings | STAGES["stage2"]

    def checkpoint(run: str, step: int) -> str:
        return str(RunFolder(folder / run).checkpoint(step))

    train(config, folder, 1, [{"name": "straight", "set": STAGES["stage0"]}])
    train(config, folder, 2, [{"name": "sequence", "set": sequence}])
    train(config, folder, 1, [{"name": "one process", "set": one_process, "resume": checkpoint("sequence", 1)}])
    train(config, folder, 2, [{"name": "context", "set": context, "resume": checkpoint("one process", 2)}])
    train(config, folder, 2, [{"name": "back", "set": sequence, "resume": checkpoint("context", 3)}])

    for run in ("one process", "context", "back"):
        for kind in KINDS:
            expected = step_tensors(folder / "straight", kind, step=4)
            assert_all_close(step_tensors(folder / run, kind, step=4), expected, bounds.TRAINED, (run, kind))
