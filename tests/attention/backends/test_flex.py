"""The backend flex, uncompiled on a CPU. tests/gpu/test_attention.py tests the compiled kernels."""

from typing import Any

import pytest
import torch
from torch import Tensor

from megatape.attention.attend import get_backend
from megatape.attention.backends import flex
from megatape.attention.rotation import PositionState
from megatape.attention.split_values import MAX_VALUE_WIDTH
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.attention import initial_state, moving, random_document_starts, widths
from tests.helpers.models.biased_attention import check

pytestmark = [pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"), pytest.mark.numerics]


@pytest.fixture(autouse=True)
def gradients_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow gradients on a CPU. torch refuses them, although its uncompiled code computes them."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *tensors: None)


@pytest.mark.parametrize(("shape", "masked"), [((2, 128, 4, 4, 16), False), ((2, 300, 6, 2, 10), True)], ids=str)
def test_bias_equals_the_formula(shape: tuple[int, ...], masked: bool) -> None:
    check("flex", shape, "distance", masked)


@pytest.mark.parametrize(
    ("size", "width", "document_starts"),
    [(16, 16, random_document_starts(2, 200)), (MAX_VALUE_WIDTH, 2 * MAX_VALUE_WIDTH, None)],
    ids=["one call, masked", "several calls"],
)
def test_moving_equals_blocks(size: int, width: int, document_starts: Tensor | None) -> None:
    """Two query heads share a key/value head."""

    def outputs_and_gradients(backend: str) -> list[Tensor]:
        q, k, v, delta = widths(2, 200, 4, 2, size, width)
        content, attended_state = moving(backend, q, k, v, initial_state(delta), delta, document_starts)
        loss = content.sin().sum() + attended_state.square().sum()
        return [content, attended_state, *torch.autograd.grad(loss, (q, k, v, delta))]

    for result, expected in zip(outputs_and_gradients("flex"), outputs_and_gradients("blocked"), strict=True):
        assert_close(result, expected, bounds.ATTENTION, floor=1e-3)


@pytest.mark.parametrize(("masked", "window"), [(False, None), (True, 30)])
def test_attention_compiles_without_graph_breaks(masked: bool, window: int | None) -> None:
    """Compiling raises an error at a graph break. Block masks are computed in the graph."""
    torch._dynamo.reset()
    document_starts = random_document_starts(2, 200) if masked else None
    q, k, v, delta = widths(2, 200, 4, 2, 16, 16)
    initial = initial_state(delta)
    backend = get_backend("flex")

    def attend(q: Tensor, k: Tensor, v: Tensor, delta: Tensor) -> Any:
        return backend.attend(q, k, v, PositionState(initial, delta), None, document_starts, True, window)

    results = []
    for function in (attend, torch.compile(attend, backend="aot_eager", fullgraph=True)):
        content, attended_state = function(q, k, v, delta)
        loss = content.sin().sum() + attended_state.square().sum()
        results.append([content, attended_state, *torch.autograd.grad(loss, (q, k, v, delta))])

    for result, expected in zip(*results, strict=True):
        assert_close(result, expected, bounds.ATTENTION, floor=1e-3)


@pytest.mark.parametrize(
    ("dtype", "biased", "width", "tiles"),
    [
        (torch.bfloat16, True, 64, flex.BIASED),
        (torch.bfloat16, False, 128, flex.WIDER_VALUES),
        (torch.bfloat16, False, 64, {}),
        (torch.float32, True, 64, None),
    ],
)
def test_tiles(
    dtype: torch.dtype, biased: bool, width: int, tiles: dict[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend chooses tiles for a bias, because torch's own choice ignores it and exceeds an H100's shared memory."""
    kernel_options = []

    def recorded(queries: Tensor, keys: Tensor, values: Tensor, **options: object) -> Tensor:
        kernel_options.append(options["kernel_options"])
        return values

    monkeypatch.setattr(flex, "flex_attention", recorded)
    q = torch.zeros(1, 8, 2, 64, dtype=dtype)
    v = torch.zeros(1, 8, 2, width, dtype=dtype)
    bias = None
    if biased:
        bias = torch.zeros(2, 8)
    flex.flex_values(q, q, v, bias, None)
    assert kernel_options == [tiles]


@pytest.mark.parametrize("size", [64, 128])
def test_tiles_of_a_bias_fit_an_h100(size: int) -> None:
    """A tile has queries, and keys, values and a float32 bias per stage. torch's own tiles would take 304 KiB at R 64."""
    rows = flex.BIASED["fwd_BLOCK_M"]
    columns = flex.BIASED["fwd_BLOCK_N"]
    query_bytes = 2 * rows * size
    stage_bytes = 2 * 2 * columns * size + 4 * rows * columns
    assert query_bytes + flex.BIASED["fwd_num_stages"] * stage_bytes <= 227 * 1024
    assert flex.BIASED["bwd_num_stages"] < 3, "with torch's own 3 stages an H200 lacked 1 KiB"
