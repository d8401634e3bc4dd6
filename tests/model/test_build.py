"""Features applied to a model from outside: parameters keep names and order, and evaluation is plain."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import megatape
from megatape.accounting.saved_tensors import saved_bytes
from megatape.config import ModelConfig
from megatape.distributed.mesh import Axis
from megatape.model.block import MLP, Attention, Block
from megatape.model.compilation import CompiledBlock
from megatape.model.memory import ChunkedBlock, RebuiltSumBlock, RecomputedBlock, SelectiveBlock, SelectiveMLP
from megatape.model.sequence_parallel import SequenceParallelAttention, SequenceParallelBlock
from megatape.model.tensor_parallel import TensorParallelAttention, TensorParallelMLP
from megatape.nn.linear import linear
from megatape.nn.remat import Remat
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.checks.slow import slow_but
from tests.helpers.models.small_models import SHAPE, model_with, random_model, tokens_and_positions


def doubled_product(x: Tensor, weight: Tensor, bias: Tensor | None = None, remat: Remat | None = None) -> Tensor:
    return 2 * linear(x, weight, bias, remat)


APPLIED: dict[str, dict[str, Any]] = {
    "frozen": {"trainable": ["norms"]},
    "fp8": {"fp8": doubled_product},
    "shifted": {"num_shifted_groups": 4},
    "selective": {"activation_checkpointing": "selective"},
    "full": {"activation_checkpointing": "full"},
    "offload": {"activation_checkpointing": "offload"},
    "chunks": {"chunk_tokens": 16},
    "compiled": {"compiler": "eager"},
}


def test_compiled_blocks_take_more_lengths_than_torch_expects() -> None:
    """Each warm-up length is compiled for training and for evaluation. At torch's limit of 8, a full graph raises an error."""
    torch._dynamo.reset()
    drawn = random_model(encoding="rope")
    model = model_with(drawn.config, compiler="eager")
    for length in range(4, 11):
        tokens, positions = (values[:, :length] for values in tokens_and_positions())
        model.train()(tokens, positions).sum().backward()
        with torch.no_grad():
            model.eval()(tokens, positions)


@pytest.mark.parametrize("name", APPLIED)
def test_parameters_and_evaluation_are_those_of_the_plain_model(name: str) -> None:
    torch._dynamo.reset()
    drawn = random_model(encoding="rope", num_kv_heads=2)
    model = model_with(drawn.config, **APPLIED[name])
    assert list(dict(model.named_parameters())) == list(dict(drawn.named_parameters()))
    model.load_state_dict(drawn.state_dict())
    inputs = tokens_and_positions()
    expected = drawn.eval()(*inputs)
    assert torch.equal(model.eval()(*inputs), expected)
    trained = model.train()(*inputs)
    assert torch.equal(trained, expected) == (name not in ("fp8", "shifted"))


def test_everything_at_once() -> None:
    """Loss and gradients equal those of the model that saves everything. Adapters' products are not the layer's."""
    lora = {"rank": 2, "alpha": 2.0, "dropout": 0.3, "targets": ["query", "output", "down"]}
    config = ModelConfig(**SHAPE | {"encoding": "rope", "lora": lora})
    options: dict[str, Any] = APPLIED["fp8"] | APPLIED["shifted"] | {"trainable": ["adapters", "norms"]}
    tokens, positions = tokens_and_positions()
    weights = random_model(encoding="rope", lora=lora).state_dict()
    found = []
    for mode in ("none", "selective", "full"):
        model = model_with(config, activation_checkpointing=mode, **options)
        model.load_state_dict(weights)
        loss = model(tokens, positions, targets=tokens, dropout_seeds=tokens[:, 0])
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters() if p.requires_grad)])
        assert {name.rpartition(".")[0] for name, p in model.named_parameters() if p.grad is not None} <= {
            name for name, _ in model.named_modules() if name.endswith(("adapter", "norm"))
        }
    for others in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(found[0], others, strict=True))


def test_blocks_are_recomputed_in_training_alone() -> None:
    """Autograd saves the streams before each block, although their tensors are inside tuples."""
    models = [model_with(ModelConfig(**SHAPE), activation_checkpointing=mode) for mode in ("none", "full")]
    plain, full = (saved_bytes(model, 2, 40) for model in models)
    numbers = 2 * 40 * SHAPE["hidden_size"]
    before = 4 * (
        (2 * SHAPE["num_layers"] - 1) * numbers + numbers // SHAPE["num_heads"] // 2
    )  # x, delta; initial of one sample
    assert before <= full < plain / 3
    assert len({saved_bytes(model.eval(), 2, 40) for model in models}) == 1


LORA = {"rank": 2, "alpha": 2.0, "targets": ["query", "up", "down"]}
CHUNKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tape": ({"num_kv_heads": 2}, {"activation_checkpointing": "offload"}),
    "rope": ({"encoding": "rope", "tie_embeddings": True}, {"activation_checkpointing": "selective"}),
    "ablation": ({"encoding": "tape_no_equivariance"}, {"activation_checkpointing": "none"}),
    "lora": ({"lora": LORA}, {"trainable": ["adapters", "position"]}),
    "compiled": ({}, {"compiler": "aot_eager", "activation_checkpointing": "full"}),
}


@pytest.mark.numerics
@pytest.mark.parametrize("name", slow_but(CHUNKED.keys() - {"compiled"}, CHUNKED))
def test_chunks_change_nothing(name: str) -> None:
    """Loss, gradients and updated weights equal those of all tokens at once, with any other feature."""
    torch._dynamo.reset()
    changes, options = CHUNKED[name]
    drawn = random_model(**changes)
    found = []
    tokens, positions = tokens_and_positions()
    for chunked in ({}, options | {"chunk_tokens": 17}):
        model = model_with(drawn.config, **{key: options[key] for key in ("trainable",) if key in options} | chunked)
        model.load_state_dict(drawn.state_dict())
        trained = {key: weight for key, weight in model.named_parameters() if weight.requires_grad}
        optimizer = torch.optim.SGD(trained.values(), lr=1e-3)
        loss = model(tokens, positions, targets=tokens)
        loss.backward()
        optimizer.step()
        gradients = {key: weight.grad for key, weight in trained.items() if weight.grad is not None}
        found.append((loss.detach(), gradients, {key: weight.detach() for key, weight in trained.items()}))
    (loss, gradients, weights), (chunked_loss, chunked_gradients, chunked_weights) = found
    assert_close(chunked_loss, loss, bounds.LOGITS)
    assert gradients.keys() == chunked_gradients.keys()
    for key, gradient in gradients.items():
        assert_close(chunked_gradients[key], gradient, bounds.PACKED_GRADIENTS, what=key)
    for key, weight in weights.items():
        assert_close(chunked_weights[key], weight, bounds.LOGITS, what=key)


def test_every_model_is_built_here() -> None:
    """A module calling the constructor directly would skip a step of build_model."""
    package = Path(megatape.__file__).parent
    call = re.compile(r"(?<!class )\bTransformer\(")
    callers = [path.relative_to(package).as_posix() for path in package.rglob("*.py") if call.search(path.read_text())]
    assert callers == ["model/build.py"]


WRAPPERS: dict[str, tuple[dict[str, Any], list[type], list[type], list[type]]] = {
    "plain": ({"encoding": "rope"}, [], [], []),
    "rebuilt sums": ({}, [RebuiltSumBlock], [], []),
    "selective": (
        {"encoding": "rope", "activation_checkpointing": "selective"},
        [SelectiveBlock],
        [TensorParallelAttention],
        [SelectiveMLP, TensorParallelMLP],
    ),
    "compiled": ({"compiler": "eager"}, [CompiledBlock], [], []),
    "tensor ranks": (
        {"encoding": "rope", "tensor_axis": Axis("tensor", 2, 0)},
        [],
        [TensorParallelAttention],
        [TensorParallelMLP],
    ),
    "everything": (
        {
            "tensor_axis": Axis("tensor", 2, 0),
            "sequence_axis": Axis("sequence", 2, 0),
            "chunk_tokens": 8,
            "activation_checkpointing": "full",
            "compiler": "eager",
        },
        [RecomputedBlock, SequenceParallelBlock, ChunkedBlock, CompiledBlock],
        [SequenceParallelAttention, TensorParallelAttention],
        [TensorParallelMLP],
    ),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_are_in_the_stated_order(name: str) -> None:
    """The first wrapper is the outermost. Blocks, attention and MLP without a wrapper are plain."""
    options, *expected = WRAPPERS[name]
    config = ModelConfig(**SHAPE | {key: value for key, value in options.items() if key == "encoding"})
    model = model_with(config, **{key: value for key, value in options.items() if key != "encoding"})
    for block in model.blocks:
        plain = (Block, Attention, MLP)
        for module, wrappers, base in zip((block, block.attention, block.mlp), expected, plain, strict=True):
            bases = type(module).__mro__
            assert [wrapper for wrapper in bases if wrapper in wrappers] == wrappers
            assert (type(module) is base) == (not wrappers) or (module is block and any(expected))
