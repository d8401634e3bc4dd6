"""megatape study on checkpoints of a real run: tables, plot, bad input."""

import shutil
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
import torch
from torch import Tensor, nn

from megatape.lab.study.attention.layer_inputs import dot_products, probabilities, run
from megatape.model.block import Attention
from megatape.registry import ENCODINGS
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close, assert_within
from tests.helpers.models.small_models import random_model, tokens_and_positions
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.training_cases import TRAIN_CASES

pytestmark = pytest.mark.numerics


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_probabilities_match_the_model(encoding: str) -> None:
    """With grouped queries, biases and norms: rows sum to 1, and values weighted by them give attention's output in every
    layer."""
    model = random_model(encoding=encoding, num_kv_heads=2, attention_bias="qkv", qk_norm=True)
    returned: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor | None]) -> None:
        returned.append(outputs[0])

    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    for attention in attentions:
        attention.register_forward_hook(keep)
    tokens, positions = tokens_and_positions()
    logits, layers = run(model, tokens, positions)
    assert torch.equal(logits, model(tokens, positions))
    assert [layer.attention for layer in layers] == attentions
    for layer, expected in zip(layers, returned, strict=False):
        weights = probabilities(layer)
        assert weights.shape == (2, 4, 40, 40)
        assert not weights.triu(1).any()
        assert_close(weights.sum(-1), torch.ones(2, 4, 40), bounds.PROBABILITIES)
        values = layer.attention.value(layer.h).output.unflatten(-1, (2, 8)).transpose(1, 2).repeat_interleave(2, 1)
        ours = layer.attention.output((weights @ values).transpose(1, 2).flatten(2))
        assert_close(ours, expected, bounds.LOGITS)


@pytest.mark.parametrize("encoding", ["rope", "tape", "tape_vector"])
def test_dot_products_of_rotary_positions(encoding: str) -> None:
    """At the first layer they are the mean over planes of cos((n - m) theta), whatever the state's width."""
    _, layers = run(random_model(encoding=encoding), *tokens_and_positions(offset=11))
    thetas = 1e4 ** (-torch.arange(0, 8, 2) / 8)
    distance = torch.arange(40)[:, None] - torch.arange(40)
    expected = (distance[..., None] * thetas).cos().mean(-1)
    found = dot_products(layers[0])
    assert found is not None
    assert found.shape == (2, 1 if encoding == "rope" else 4, 40, 40)
    assert_close(found, expected.expand_as(found), bounds.LOGITS)


def test_no_dot_products_without_position_tensors() -> None:
    for encoding in ("nope", "alibi", "fire", "xpos", "sinusoidal", "t5"):
        _, layers = run(random_model(encoding=encoding), *tokens_and_positions())
        assert dot_products(layers[0]) is None, encoding


def test_hooks_are_removed() -> None:
    model = random_model()
    run(model, *tokens_and_positions())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_trained_checkpoints(command: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    names = ["rope", "tape", "tape_vector"]
    # A high learning rate, so that weights move: with a zero gain the ablation would equal RoPE.
    cases = [{"name": name, "set": {"model.encoding": name, "optimizer.learning_rate": 0.1}} for name in names]
    run_workers(TRAIN_CASES, 1, {"config": raw_config, "cases": cases}, tmp_path / "workers")
    runs = Path(raw_config["run"]["directory"])
    checkpoints = [runs / name / "checkpoints" / "step-00000004" for name in names]

    code, printed, errors = command("study", "shift", *checkpoints, "--samples", 2)
    assert code == 0, errors
    assert "2 sequences of 32 tokens" in printed
    assert f"tape: {checkpoints[1]}, 1,024 tokens of training" in printed
    logits = {line.split("`")[1]: float(line.split(" | ")[2].rstrip(" |")) for line in printed.splitlines()[-5:] if "`" in line}
    assert list(logits) == names
    for name in ("rope", "tape"):
        assert_within(logits[name], bounds.SHIFTED, name)
    assert logits["tape_vector"] > 1e-4

    picture = tmp_path / "patterns.png"
    code, printed, errors = command("study", "attention", *checkpoints, "--samples", 2, "--out", picture)
    assert code == 0, errors
    assert "5 rows, layers 1, 2" in printed
    pixels = torch.from_numpy(matplotlib.image.imread(picture))
    assert pixels.shape[0] > 1.2 * pixels.shape[1]
    assert float(pixels.std()) > 0.1

    other = shutil.copytree(checkpoints[0], tmp_path / "other")
    both = command("study", "shift", checkpoints[0], other, "--samples", 1)[1]
    assert f"`rope {checkpoints[0]}`" in both
    assert f"`rope {other}`" in both
    for arguments, message in [
        ((checkpoints[0], checkpoints[0]), "is given twice"),
        ((runs,), "no manifest.json"),
        ((runs / "rope",), "is a run, not a checkpoint"),
        ((tmp_path / "nowhere",), "no such folder"),
        ((checkpoints[0], "--shift", 32), "--shift is 32, but the sequences have 32 tokens"),
        ((checkpoints[0], "--samples", 0), "--samples: must be greater than or equal to 1, got '0'"),
        ((checkpoints[0], "--samples", 10**6), "lower it"),
        ((checkpoints[0], "--length", 1), "--length: must be greater than or equal to 2, got '1'"),
        ((checkpoints[0], "--data", tmp_path / "nowhere"), "nowhere"),
    ]:
        code, _, errors = command("study", "shift", *arguments)
        assert code == 2 and errors.startswith("error: ") and message in errors, arguments
    weights = checkpoints[0] / "weight-00000.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    code, _, errors = command("study", "shift", checkpoints[0])
    assert code == 2
    assert "weight-00000.safetensors" in errors
