"""Blocked attention with a bias against the plain formula, and biases against their published definitions."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from megatape.attention.attend import get_backend
from megatape.attention.blocked.row_blocks import BLOCK
from megatape.config import ModelConfig
from megatape.distributed.mesh import SINGLE
from megatape.encodings import encoding_of
from megatape.encodings.alibi import slopes
from megatape.encodings.fire import WIDTH
from megatape.encodings.t5 import buckets
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.attention import SHAPES
from tests.helpers.models.biased_attention import check, inputs
from tests.helpers.models.small_models import SHAPE

pytestmark = pytest.mark.numerics


KINDS = ("distance", "pairs", "pairs of rows")  # In the last case, every row in the batch has its own positions.


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks_equal_the_formula(shape: tuple[int, ...], kind: str, masked: bool) -> None:
    check("blocked", shape, kind, masked)


def test_gradients_are_those_of_the_function() -> None:
    """Finite differences in float64. FIRE is checked block by block, because only some queries exceed its threshold."""
    exact, make = inputs((1, 12, 2, 2, 4), "pairs")
    keys = slice(0, 12)

    def fire(*weights: Tensor) -> Tensor:
        bias = make(list(weights))
        blocks = [bias.block(bias.weights, rows, keys) for rows in (slice(0, 5), slice(5, 12))]
        return torch.cat(blocks, dim=2)

    assert torch.autograd.gradcheck(fire, exact[3:])

    exact, make = inputs((1, 12, 2, 2, 4), "distance")

    def by_distance(table: Tensor) -> Tensor:
        return make([table]).block((table,), slice(5, 9), slice(0, 9))

    assert torch.autograd.gradcheck(by_distance, exact[3:])


@pytest.mark.parametrize("shape", [(1, 6, 1, 1, 4), (2, 1, 3, 3, 4)], ids=["one head", "one token"])
def test_inputs_are_left_alone(shape: tuple[int, ...]) -> None:
    """One head and one token already have the kernel's layout without a copy, so it must not scale them in place."""
    exact, make = inputs(shape, "distance")
    arguments = [tensor.detach().float() for tensor in exact]
    copies = [tensor.clone() for tensor in arguments]
    q, k, v, *weights = arguments
    get_backend("blocked").attend(q, k, v, None, make(weights), None, False)
    for argument, copy in zip(arguments, copies, strict=True):
        assert torch.equal(argument, copy)


class LargestTensor(TorchDispatchMode):
    """Records how many elements the largest storage returned by an operation has."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


@pytest.mark.parametrize(("kind", "units"), [("distance", 3), ("pairs", WIDTH + 1)])
def test_thousands_of_tokens(kind: str, units: int) -> None:
    """The forward pass's largest tensor has a block's rows and all keys, for all heads or hidden units.

    The lookup by distance keeps to this limit in the backward pass as well.
    """
    length = 4608
    heads = 2
    exact, make = inputs((1, length, heads, heads, 2), kind)
    arguments = [tensor.detach().float().requires_grad_() for tensor in exact]
    q, k, v, *weights = arguments
    with LargestTensor() as largest:
        output, _ = get_backend("blocked").attend(q, k, v, None, make(weights), None, False)
        if kind == "distance":
            output.sum().backward()
            for argument in arguments:
                assert argument.grad is not None
                assert argument.grad.isfinite().all()
    max_elements = units * BLOCK * (length + BLOCK)
    assert max_elements < length * length
    assert largest.elements <= max_elements
    assert output.isfinite().all()


def bias_of(encoding: str, heads: int, length: int = 40) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a random layer's bias [H, N, N], and its weights."""
    config = ModelConfig(**SHAPE | {"encoding": encoding, "num_heads": heads, "head_dim": 4})
    layer = encoding_of(config).bias(SINGLE)
    assert layer is not None
    generator = torch.Generator().manual_seed(0)
    for weight in layer.parameters():
        weight.data.normal_(0.5, 0.5, generator=generator)
    state = encoding_of(config).state(torch.arange(length)[None])
    q = k = torch.zeros(1, length, heads, 4)
    bias = layer.scores(layer(q, k, ()), state, past=0)
    return bias.block(bias.weights, slice(0, length), slice(0, length))[0].detach(), dict(layer.named_parameters())


def visible_pairs(length: int = 40) -> list[tuple[int, int]]:
    """Return all visible pairs: the indices of a query and a key."""
    return [(row, column) for row in range(length) for column in range(row + 1)]


def test_alibi_slopes() -> None:
    """Slopes are 2^(-8h/H). 12 heads use those of 8, then every second one of 16 (Press et al., footnote on other numbers)."""
    slopes_of_8 = [2.0**-h for h in range(1, 9)]
    assert slopes(8).tolist() == slopes_of_8
    assert slopes(12).tolist() == slopes_of_8 + [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5]


def test_alibi() -> None:
    bias, _ = bias_of("alibi", 12)
    for head, slope in enumerate(slopes(12).tolist()):
        values = [float(bias[head, row, column]) for row, column in visible_pairs()]
        expected = [-slope * (row - column) for row, column in visible_pairs()]
        assert_close(values, expected, bounds.DEFINITION)


def test_t5_buckets_are_those_of_transformers() -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = torch.arange(5000)
    expected = T5Attention._relative_position_bucket(-distances, bidirectional=False, num_buckets=32, max_distance=128)
    assert torch.equal(buckets(5000, torch.device("cpu")), expected)
    assert buckets(200, torch.device("cpu")).unique().tolist() == list(range(32))


def test_t5() -> None:
    bias, weights = bias_of("t5", 3, 200)
    bucket = buckets(200, torch.device("cpu"))
    for row, column in visible_pairs(200)[::7]:
        assert torch.equal(bias[:, row, column], weights["table"][:, bucket[row - column]])


def test_fire() -> None:
    bias, weights = bias_of("fire", 3, 700)
    weights = {name: weight.detach().double() for name, weight in weights.items()}
    c = float(weights["log_scale"])
    threshold = abs(float(weights["threshold"]) * 512)
    for row, column in visible_pairs(700)[::501]:
        log_distance = math.log1p(abs(c * (row - column)))
        log_length = math.log1p(abs(c * max(row, threshold)))
        share = log_distance / (log_length + 1e-6)
        hidden = (weights["inner_weight"][:, 0] * share + weights["inner_bias"]).relu()
        expected = weights["outer_weight"] @ hidden + weights["outer_bias"]
        assert_close(bias[:, row, column].double(), expected, bounds.DEFINITION)
