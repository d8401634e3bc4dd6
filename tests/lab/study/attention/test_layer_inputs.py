"""Recording attention's inputs in a model, and the commands `study shift` and `study attention` on trained checkpoints."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.image
import pytest
import torch
from torch import Tensor, nn

from megatape.lab.study.attention.layer_inputs import dot_products, probabilities, run
from megatape.model.attention import Attention
from megatape.registry import ENCODINGS
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close, assert_within
from tests.helpers.models.small_models import random_model, tokens_and_positions
from tests.helpers.processes.command import Command, assert_refused
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.small_run import small_config
from tests.helpers.runs.training_cases import TRAIN_CASES

ENCODINGS_TRAINED = ("rope", "tape", "tape_vector")


@pytest.mark.numerics
@pytest.mark.parametrize("changes", [*({"encoding": name} for name in ENCODINGS), {"layers": "tape, rope@9, tape"}], ids=str)
def test_probabilities_match_the_model(changes: dict[str, Any]) -> None:
    """In every layer, rows sum to 1, and values weighted by them give attention's output, also with grouped queries, biases,
    norms, and layers with windows or encodings of their own."""
    model = random_model(num_kv_heads=2, attention_bias="qkv", qk_norm=True, **changes)
    expected_outputs: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor | None]) -> None:
        expected_outputs.append(outputs[0])

    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    for attention in attentions:
        attention.register_forward_hook(keep)
    tokens, positions = tokens_and_positions()

    logits, layers = run(model, tokens, positions)

    assert torch.equal(logits, model(tokens, positions))
    assert [layer.attention for layer in layers] == attentions
    for layer, expected in zip(layers, expected_outputs, strict=False):  # Calling the model again has added outputs.
        weights = probabilities(layer)
        assert weights.shape == (2, 4, 40, 40)
        assert not weights.triu(1).any()
        assert_close(weights.sum(-1), torch.ones(2, 4, 40), bounds.PROBABILITIES)
        values = layer.attention.value(layer.h).output.unflatten(-1, (2, 8))
        values_of_heads = values.transpose(1, 2).repeat_interleave(2, 1)
        attended = (weights @ values_of_heads).transpose(1, 2).flatten(2)
        assert_close(layer.attention.output(attended), expected, bounds.LOGITS)


@pytest.mark.numerics
@pytest.mark.parametrize("encoding", ["rope", "tape", "tape_vector"])
def test_dot_products_of_rotary_positions(encoding: str) -> None:
    """In the first layer they are cos((n - m) theta) averaged over planes, whatever the state's width."""
    thetas = 1e4 ** (-torch.arange(0, 8, 2) / 8)
    distance = torch.arange(40)[:, None] - torch.arange(40)
    expected = (distance[..., None] * thetas).cos().mean(-1)

    _, layers = run(random_model(encoding=encoding), *tokens_and_positions(offset=11))
    products = dot_products(layers[0])

    assert products is not None
    num_channels = 1 if encoding == "rope" else 4
    assert products.shape == (2, num_channels, 40, 40)
    assert_close(products, expected.expand_as(products), bounds.LOGITS)


def test_no_dot_products_without_position_tensors() -> None:
    for encoding in ("nope", "alibi", "fire", "xpos", "sinusoidal", "t5"):
        _, layers = run(random_model(encoding=encoding), *tokens_and_positions())
        assert dot_products(layers[0]) is None, encoding


def test_hooks_are_removed() -> None:
    model = random_model()

    run(model, *tokens_and_positions())

    for module in model.modules():
        assert not module._forward_pre_hooks


@pytest.fixture(scope="module")
def checkpoints(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Train a short run with each of ENCODINGS_TRAINED. Returns the last checkpoints. Tests copy what they damage."""
    folder = tmp_path_factory.mktemp("trained")
    config = small_config(data_directory, folder / "runs")
    # A high learning rate, so that weights move: with a zero gain the ablation would equal RoPE.
    cases = [{"name": name, "set": {"model.encoding": name, "optimizer.learning_rate": 0.1}} for name in ENCODINGS_TRAINED]
    run_workers(TRAIN_CASES, 1, {"config": config, "cases": cases}, folder / "workers")
    return {name: folder / "runs" / name / "checkpoints" / "step-00000004" for name in ENCODINGS_TRAINED}


def _logit_changes(printed: str) -> dict[str, float]:
    """Return how much shifting ids changes logits, by encoding, from the last table printed by `study shift`."""
    changes = {}
    for line in printed.splitlines()[-5:]:
        if "`" in line:
            name = line.split("`")[1]
            changes[name] = float(line.split(" | ")[2].rstrip(" |"))
    return changes


@pytest.mark.numerics
def test_shift_compares_trained_checkpoints(command: Command, checkpoints: dict[str, Path]) -> None:
    status, printed, errors = command("study", "shift", *checkpoints.values(), "--samples", 2)

    assert status == 0, errors
    assert "2 sequences of 32 tokens" in printed
    assert f"tape: {checkpoints['tape']}, 1,024 tokens of training" in printed
    changes = _logit_changes(printed)
    assert tuple(changes) == ENCODINGS_TRAINED
    assert_within(changes["rope"], bounds.SHIFTED, "rope")
    assert_within(changes["tape"], bounds.SHIFTED, "tape")
    assert changes["tape_vector"] > 1e-4


def test_attention_is_drawn_for_trained_checkpoints(command: Command, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    picture = tmp_path / "patterns.png"

    status, printed, errors = command("study", "attention", *checkpoints.values(), "--samples", 2, "--output", picture)

    assert status == 0, errors
    assert "5 rows, layers 1, 2" in printed
    pixels = torch.from_numpy(matplotlib.image.imread(picture))
    height, width = pixels.shape[:2]
    assert height > 1.2 * width
    assert float(pixels.std()) > 0.1


def test_checkpoints_of_one_encoding_are_labeled_by_path(
    command: Command, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    rope = checkpoints["rope"]
    copied = shutil.copytree(rope, tmp_path / "other")

    _, printed, _ = command("study", "shift", rope, copied, "--samples", 1)

    assert f"`rope {rope}`" in printed
    assert f"`rope {copied}`" in printed


class Refusal(NamedTuple):
    """Arguments that `study shift` refuses. CHECKPOINT, RUN, RUNS and NOWHERE stand for paths."""

    arguments: tuple[object, ...]
    message: str


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(("CHECKPOINT", "CHECKPOINT"), "is given twice"),
        Refusal(("RUNS",), "no manifest.json"),
        Refusal(("RUN",), "is a run, not a checkpoint"),
        Refusal(("NOWHERE",), "no such folder"),
        Refusal(("CHECKPOINT", "--shift", 32), "--shift is 32, but the sequences have 32 tokens"),
        Refusal(("CHECKPOINT", "--samples", 0), "--samples: must be greater than or equal to 1, got '0'"),
        Refusal(("CHECKPOINT", "--samples", 10**6), "lower it"),
        Refusal(("CHECKPOINT", "--length", 1), "--length: must be greater than or equal to 2, got '1'"),
        Refusal(("CHECKPOINT", "--data", "NOWHERE"), "nowhere"),
    ],
    ids=lambda refusal: refusal.message,
)
def test_shift_refuses_bad_arguments(command: Command, checkpoints: dict[str, Path], tmp_path: Path, refusal: Refusal) -> None:
    checkpoint = checkpoints["rope"]
    run_directory = checkpoint.parents[1]
    paths = {
        "CHECKPOINT": checkpoint,
        "RUN": run_directory,
        "RUNS": run_directory.parent,
        "NOWHERE": tmp_path / "nowhere",
    }
    words = [paths.get(str(argument), argument) for argument in refusal.arguments]

    assert_refused(command("study", "shift", *words), refusal.message)


def test_shift_refuses_a_corrupted_weight_file(command: Command, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    checkpoint = shutil.copytree(checkpoints["rope"], tmp_path / "corrupted")
    weights = checkpoint / "weight-00000.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")

    status, _, errors = command("study", "shift", checkpoint)

    assert status == 2
    assert "weight-00000.safetensors" in errors
