"""The model on a GPU: its attention backends against the CPU's, and a training step with ZeRO-3 in bfloat16."""

from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.attention.blocked import blocked_biased_attention
from megatape.attention.flex import flex_biased_attention
from megatape.registry import ENCODINGS
from tests import bounds
from tests.attention.test_bias import Kernel, inputs
from tests.attention.test_operation import random_document_starts
from tests.bounds import relative_difference
from tests.model.builder import random_model, tokens_and_positions
from tests.workers import run_workers

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("changes", [{"encoding": encoding} for encoding in ENCODINGS] + [{"num_kv_heads": 2}], ids=str)
def test_gpu_equals_cpu(changes: dict[str, Any]) -> None:
    """Logits and gradients in float32; matrix products in full float32 (TF32 off)."""
    torch.backends.cuda.matmul.allow_tf32 = False
    results = []
    for device in ("cpu", "cuda"):
        model = random_model(**changes).to(device)
        tokens, positions = (tensor.to(device) for tensor in tokens_and_positions())
        logits = model(tokens, positions)
        logits.square().mean().backward()
        gradients = {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}
        results.append((logits.detach().cpu(), gradients))
    (expected, expected_gradients), (logits, gradients) = results
    assert relative_difference(logits, expected) < bounds.GPU_LOGITS
    for name, gradient in gradients.items():
        reference = expected_gradients[name]
        assert relative_difference(gradient, reference) < bounds.GPU_GRADIENTS, name


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", [(2, 128, 4, 4, 16), (2, 300, 6, 2, 32)], ids=str)
def test_flex_equals_blocks(shape: tuple[int, ...], masked: bool) -> None:
    """Compiled, with gradients of heads and bias table, float32. TF32 is off."""
    torch.backends.cuda.matmul.allow_tf32 = False
    exact, make = inputs(shape, "distance")
    document_starts = random_document_starts(*shape[:2]) if masked else None
    results = []
    kernels: dict[str, Kernel] = {"cpu": blocked_biased_attention, "cuda": flex_biased_attention}
    for device, kernel in kernels.items():
        given = [tensor.detach().float().to(device).requires_grad_() for tensor in exact]
        q, k, v, *weights = given
        out = kernel(q, k, v, make(weights), None if document_starts is None else document_starts.to(device))
        out.sin().sum().backward()
        results.append([out.detach().cpu(), *(tensor.grad.cpu() for tensor in given)])
    for expected, found in zip(*results, strict=True):
        assert relative_difference(found, expected) < bounds.GPU_GRADIENTS


def test_trains_on_a_gpu(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["training"] |= {"precision": "bfloat16"}
    cases = [{"name": "gpu"}, {"name": "gpu", "resume": "auto", "set": {"training.steps": 6}}]
    results = run_workers("tests.training.cases:train_cases", 1, {"config": raw_config, "cases": cases}, tmp_path / "workers")
    assert results[0] == [{"step": 0, "samples": 0}, {"step": 4, "samples": 32}]
