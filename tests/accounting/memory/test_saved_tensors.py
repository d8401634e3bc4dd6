"""Bytes saved by a real forward pass."""

import weakref
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from megatape.accounting.memory.saved_tensors import record_saved, saved_bytes
from megatape.config import ActivationCheckpointing as Mode
from megatape.config import ModelConfig
from megatape.registry import ENCODINGS
from tests.helpers.checks.slow import slow_but
from tests.helpers.models.small_models import SHAPE, model_with, random_model, tokens_and_positions


@pytest.mark.parametrize("checkpointing", slow_but(["full"], ["none", "full"]))
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_saved_bytes_without_memory_equal_real_ones(encoding: str, checkpointing: Mode) -> None:
    config = ModelConfig(encoding=encoding, **SHAPE)
    real = saved_bytes(model_with(config, activation_checkpointing=checkpointing), 2, 48)
    with FakeTensorMode():
        assert saved_bytes(model_with(config, activation_checkpointing=checkpointing), 2, 48) == real
    assert real > 0


VARIANTS: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "tape": (torch.float32, {}),
    "gqa": (torch.bfloat16, {"num_kv_heads": 2, "attention_bias": "qkvo", "qk_norm": True}),
    "lora": (torch.float32, {"lora": {"rank": 3, "alpha": 1.0, "dropout": 0.2, "targets": ["query", "down"]}}),
    "bias by pair": (torch.bfloat16, {"encoding": "fire"}),
}


@pytest.mark.parametrize("variant", slow_but(["gqa"], VARIANTS))
def test_checkpointing_saves_less_and_changes_nothing(variant: str) -> None:
    """Loss and gradients are bit-identical, also over micro-batches. Selective mode recomputes no matrix product."""
    dtype, changes = VARIANTS[variant]
    tokens, position_ids = tokens_and_positions()
    results: dict[Mode, dict[str, Tensor]] = {}
    saved: dict[Mode, int] = {}
    flops: dict[Mode, int] = {}
    for mode in get_args(Mode):
        initial = random_model(**changes)
        # The backend `blocked` pads no heads for a CPU's kernel.
        model = model_with(initial.config, activation_checkpointing=mode, backends=("blocked",)).to(dtype)
        model.load_state_dict(initial.state_dict())
        saved[mode] = saved_bytes(model, 2, 40)
        with FlopCounterMode(display=False) as counter:
            for sample in (tokens[:1], tokens[1:]):
                loss = model(sample, position_ids[:1], targets=sample, dropout_seeds=sample[:, 0])
                loss.backward()
        flops[mode] = counter.get_total_flops()
        results[mode] = {"loss": loss.detach()}
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                results[mode][name] = parameter.grad

    expected = results["none"]
    for mode in ("selective", "full"):
        assert results[mode].keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(results[mode][name], tensor), (mode, name)
    assert flops["none"] == flops["selective"] < flops["full"]
    share = 0.75
    if variant == "lora":
        share = 0.9  # Adapters save their inputs.
    assert saved["full"] < saved["selective"] < share * saved["none"]


@pytest.mark.parametrize("checkpointing", ["none", "selective"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tape_saves_two_more_tensors_per_layer(checkpointing: Mode, dtype: torch.dtype) -> None:
    """A layer saves A e and the change of e. The last layer saves queries and keys before rotation.

    The MLP's output, which moves e, replaces the next block's input, because that is its sum with a saved tensor.
    """
    saved = {}
    for encoding in ("tape", "rope"):
        config = ModelConfig(encoding=encoding, **SHAPE)
        model = model_with(config, backends=("blocked",), activation_checkpointing=checkpointing).to(dtype)
        saved[encoding] = saved_bytes(model, 2, 40)
    assert saved["tape"] - saved["rope"] == 2 * SHAPE["num_layers"] * 2 * 40 * SHAPE["hidden_size"] * dtype.itemsize


def test_recording_keeps_no_graph_alive() -> None:
    """Sigmoid saves its own output. Recording it must not create a cycle, or studies of many models run out of memory."""
    with record_saved(exclude=[]) as saved:
        output = torch.ones(8, requires_grad=True).sigmoid()
    assert saved.bytes == 8 * 4
    gone = weakref.ref(output)
    del output
    assert gone() is None
