"""Features applied to a model from outside: parameters keep names and order, and evaluation is plain."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from megatape.accounting.memory.saved_tensors import saved_bytes
from megatape.config import ModelConfig
from megatape.distributed.mesh import Axis
from megatape.model.attention import Attention
from megatape.model.block import Block
from megatape.model.mlp import MLP
from megatape.model.wrappers.compilation import CompiledBlock, PartlyCompiledBlock
from megatape.model.wrappers.memory import ChunkedBlock, RebuiltSumBlock, RecomputedBlock, SelectiveBlock, SelectiveMLP
from megatape.model.wrappers.sequence_parallel import SequenceParallelAttention, SequenceParallelBlock
from megatape.model.wrappers.tensor_parallel import TensorParallelAttention, TensorParallelMLP
from megatape.nn.linear import linear
from megatape.nn.remat.remat import Remat
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.checks.slow import slow_but
from tests.helpers.models.small_models import SHAPE, model_with, random_model, tokens_and_positions


def doubled_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, remat: Remat | None = None) -> Tensor:
    return 2 * linear(x, weight, bias, remat)


APPLIED: dict[str, dict[str, Any]] = {
    "frozen": {"trainable": ["norms"]},
    "linear_function": {"linear_function": doubled_linear},
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
    assert torch.equal(trained, expected) == (name not in ("linear_function", "shifted"))


def test_everything_at_once() -> None:
    """Loss and gradients equal those when saving everything. Adapters do not use the layer's function."""
    lora = {"rank": 2, "alpha": 2.0, "dropout": 0.3, "targets": ["query", "output", "down"]}
    config = ModelConfig(**SHAPE | {"encoding": "rope", "lora": lora})
    options: dict[str, Any] = APPLIED["linear_function"] | APPLIED["shifted"] | {"trainable": ["adapters", "norms"]}
    tokens, positions = tokens_and_positions()
    weights = random_model(encoding="rope", lora=lora).state_dict()

    def loss_and_gradients(mode: str) -> dict[str, Tensor]:
        model = model_with(config, activation_checkpointing=mode, **options)
        model.load_state_dict(weights)
        loss = model(tokens, positions, targets=tokens, dropout_seeds=tokens[:, 0])
        loss.backward()
        results = {"loss": loss.detach()}
        for name, weight in model.named_parameters():
            if weight.grad is not None:
                results[name] = weight.grad
        return results

    expected = loss_and_gradients("none")
    for name in expected.keys() - {"loss"}:
        module = name.rpartition(".")[0]
        assert module.endswith(("adapter", "norm")), name
    for mode in ("selective", "full"):
        results = loss_and_gradients(mode)
        assert results.keys() == expected.keys()
        for name, result in results.items():
            assert torch.equal(result, expected[name]), (mode, name)


def test_blocks_are_recomputed_in_training_alone() -> None:
    """Autograd saves the streams before each block, although their tensors are inside tuples."""
    model = model_with(ModelConfig(**SHAPE), activation_checkpointing="none")
    recomputed_model = model_with(ModelConfig(**SHAPE), activation_checkpointing="full")

    num_saved = saved_bytes(recomputed_model, 2, 40)

    # x and delta before each block except that the first one has no delta, and the initial state of one sample
    stream_elements = 2 * 40 * SHAPE["hidden_size"]
    initial_elements = stream_elements // SHAPE["num_heads"] // 2
    num_stream_bytes = 4 * ((2 * SHAPE["num_layers"] - 1) * stream_elements + initial_elements)
    assert num_stream_bytes <= num_saved
    assert num_saved < saved_bytes(model, 2, 40) / 3
    assert saved_bytes(recomputed_model.eval(), 2, 40) == saved_bytes(model.eval(), 2, 40)


LORA = {"rank": 2, "alpha": 2.0, "targets": ["query", "up", "down"]}
# Name -> changes to the shape, and options besides chunks
CHUNKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tape": ({"num_kv_heads": 2}, {"activation_checkpointing": "offload"}),
    "rope": ({"encoding": "rope", "tie_embeddings": True}, {"activation_checkpointing": "selective"}),
    "ablation": ({"encoding": "tape_no_equivariance"}, {"activation_checkpointing": "none"}),
    "lora": ({"lora": LORA}, {"trainable": ["adapters", "position"]}),
    "compiled": ({}, {"compiler": "aot_eager", "activation_checkpointing": "full"}),
}


class TrainedStep(NamedTuple):
    """Return loss, gradients and updated weights after a step."""

    loss: Tensor
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]


@pytest.mark.numerics
@pytest.mark.parametrize("name", slow_but(CHUNKED.keys() - {"compiled"}, CHUNKED))
def test_chunks_change_nothing(name: str) -> None:
    """Loss, gradients and updated weights equal those for all tokens at once, with any other feature."""
    torch._dynamo.reset()
    changes, options = CHUNKED[name]
    drawn = random_model(**changes)
    tokens, positions = tokens_and_positions()

    def train_a_step(**options: Any) -> TrainedStep:
        model = model_with(drawn.config, **options)
        model.load_state_dict(drawn.state_dict())
        trained = {key: weight for key, weight in model.named_parameters() if weight.requires_grad}
        optimizer = torch.optim.SGD(trained.values(), lr=1e-3)
        loss = model(tokens, positions, targets=tokens)
        loss.backward()
        optimizer.step()
        gradients = {key: weight.grad for key, weight in trained.items() if weight.grad is not None}
        return TrainedStep(loss.detach(), gradients, {key: weight.detach() for key, weight in trained.items()})

    plain_options = {key: value for key, value in options.items() if key == "trainable"}
    expected = train_a_step(**plain_options)
    step = train_a_step(**options, chunk_tokens=17)

    assert_close(step.loss, expected.loss, bounds.LOGITS)
    assert step.gradients.keys() == expected.gradients.keys()
    for key, gradient in expected.gradients.items():
        assert_close(step.gradients[key], gradient, bounds.PACKED_GRADIENTS, what=key)
    for key, weight in expected.weights.items():
        assert_close(step.weights[key], weight, bounds.LOGITS, what=key)


class Wrappers(NamedTuple):
    """Expected wrappers, from the outermost one.

    Attributes:
        options: Options for the model, and its encoding.
        block: Wrappers of blocks.
        attention: Wrappers of attention.
        mlp: Wrappers of MLPs.
    """

    options: dict[str, Any]
    block: tuple[type, ...] = ()
    attention: tuple[type, ...] = ()
    mlp: tuple[type, ...] = ()


TENSOR_AXIS = Axis("tensor", 2, 0)
WRAPPERS = {
    "plain": Wrappers({"encoding": "rope"}),
    "rebuilt sums": Wrappers({}, block=(RebuiltSumBlock,)),
    "selective": Wrappers(
        {"encoding": "rope", "activation_checkpointing": "selective"},
        block=(SelectiveBlock,),
        attention=(TensorParallelAttention,),
        mlp=(
            SelectiveMLP,
            TensorParallelMLP,
        ),
    ),
    "compiled": Wrappers({"compiler": "eager"}, block=(CompiledBlock,)),
    "tensor ranks": Wrappers(
        {"encoding": "rope", "tensor_axis": TENSOR_AXIS},
        attention=(TensorParallelAttention,),
        mlp=(TensorParallelMLP,),
    ),
    "everything": Wrappers(
        {
            "tensor_axis": TENSOR_AXIS,
            "sequence_axis": Axis("sequence", 2, 0),
            "chunk_tokens": 8,
            "activation_checkpointing": "full",
            "compiler": "eager",
        },
        block=(
            RecomputedBlock,
            SequenceParallelBlock,
            ChunkedBlock,
            PartlyCompiledBlock,
        ),
        attention=(
            SequenceParallelAttention,
            TensorParallelAttention,
        ),
        mlp=(TensorParallelMLP,),
    ),
}


def wrappers_among(module: Any, wrappers: tuple[type, ...]) -> tuple[type, ...]:
    """Return the module's bases found in `wrappers`, starting with the outermost one."""
    return tuple(base for base in type(module).__mro__ if base in wrappers)


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_are_in_the_stated_order(name: str) -> None:
    """Blocks, attention and MLP without a wrapper are plain."""
    expected = WRAPPERS[name]
    options = dict(expected.options)
    encoding = options.pop("encoding", "tape")
    model = model_with(ModelConfig(**SHAPE | {"encoding": encoding}), **options)
    has_wrappers = bool(expected.block or expected.attention or expected.mlp)
    for block in model.blocks:
        assert wrappers_among(block, expected.block) == expected.block
        assert wrappers_among(block.attention, expected.attention) == expected.attention
        assert wrappers_among(block.mlp, expected.mlp) == expected.mlp
        assert (type(block.attention) is Attention) == (not expected.attention)
        assert (type(block.mlp) is MLP) == (not expected.mlp)
        if not has_wrappers:
            assert type(block) is Block
        if expected.block:
            assert type(block) is not Block
