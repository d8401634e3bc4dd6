"""Models with different encodings that share their weights, and their costs."""

import torch
from torch import nn

from megatape.accounting.memory.saved_tensors import saved_bytes
from megatape.accounting.whole_model.flops import forward_flops
from megatape.accounting.whole_model.parameters import count_parameters
from megatape.config import ModelConfig
from megatape.lab.benchmark.models.compared_models import ROPE, ModelName, build_models
from megatape.lab.benchmark.models.measured_model import MeasuredLlama
from megatape.lab.benchmark.models.measured_parts import PARTS, train
from megatape.lab.benchmark.models.shapes import ModelShape
from megatape.lab.encodings import with_encoding
from megatape.model.build import build_model
from megatape.registry import ENCODINGS
from tests.helpers.models.small_models import SHAPE

CPU = torch.device("cpu")
SMALL = ModelConfig(**SHAPE)
TAPE = ModelName("tape")


def assert_no_gradients(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        assert parameter.grad is None, name


def test_every_encoding_runs_every_part_and_is_counted() -> None:
    """The bytes match the accounting, and the blocks keep less than the whole model."""
    measured_models = build_models(ModelShape(SMALL, 2, 32), list(ENCODINGS), CPU)
    assert list(measured_models) == [ModelName(name) for name in ENCODINGS]
    for name, measured in measured_models.items():
        for part in PARTS:
            part.run(measured)
        assert_no_gradients(measured.model)
        cost = measured.cost()
        config = with_encoding(SMALL, name.encoding)
        assert cost.parameters == count_parameters(config).total, name
        assert cost.flops == forward_flops(config, 32), name
        assert cost.saved == saved_bytes(build_model(config), 2, 32), name
        assert 0 < cost.saved_blocks < cost.saved, name


def test_modes_of_activation_checkpointing() -> None:
    """More checkpointing saves fewer bytes, both in the whole model and in the blocks alone."""
    measured_models = build_models(ModelShape(SMALL, 2, 32), ["tape"], CPU, ("selective", "full"))
    names = [str(name) for name in measured_models]
    assert names == ["rope", "tape", "rope, selective", "rope, full", "tape, selective", "tape, full"]
    none = measured_models[TAPE].cost()
    selective = measured_models[ModelName("tape", "selective")].cost()
    full = measured_models[ModelName("tape", "full")].cost()
    assert full.saved < selective.saved < none.saved
    assert full.saved_blocks < selective.saved_blocks < none.saved_blocks


def test_shared_weights_are_shared() -> None:
    """All encodings share one copy of their common weights."""
    models = build_models(ModelShape(SMALL, 1, 8), ["tape", "rope"], CPU)

    tape_weights = dict(models[TAPE].model.named_parameters())
    for name, weight in models[ROPE].model.named_parameters():
        assert weight.data_ptr() == tape_weights[name].data_ptr(), name


def test_shared_weights_are_the_same_each_time() -> None:
    """RoPE is prepared even if it is not listed."""
    tape = build_models(ModelShape(SMALL, 1, 8), ["tape"], CPU)[TAPE].model
    rope = build_models(ModelShape(SMALL, 1, 8), ["tape"], CPU)[ROPE].model

    tape_weights = dict(tape.named_parameters())
    for name, weight in rope.named_parameters():
        assert torch.equal(weight, tape_weights[name]), name


def test_llama_of_transformers_has_as_many_parameters_as_rope() -> None:
    rope = build_models(ModelShape(SMALL, 2, 32), [], CPU)[ROPE]

    llama = MeasuredLlama(rope)

    assert sum(parameter.numel() for parameter in llama.model.parameters()) == rope.cost().parameters


def test_training_steps_of_a_llama_run_through_all_blocks() -> None:
    llama = MeasuredLlama(build_models(ModelShape(SMALL, 2, 32), [], CPU)[ROPE])
    passes: list[str] = []
    for module in (llama.model.lm_head, *llama.model.model.layers):
        module.register_full_backward_hook(lambda module, *_: passes.append(type(module).__name__))

    train(llama.model, llama.loss)
    assert passes == ["Linear", *["LlamaDecoderLayer"] * SMALL.num_layers]

    passes.clear()
    train(llama.model, llama.blocks)
    assert passes == ["LlamaDecoderLayer"] * SMALL.num_layers
    assert_no_gradients(llama.model)
