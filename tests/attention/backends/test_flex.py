"""The calls of flex_attention, uncompiled on a CPU; tests/model/test_gpu.py has the compiled kernels."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from megatape.attention.backends import flex
from megatape.attention.bias import DistanceBias
from megatape.attention.split_values import MAX_VALUE_WIDTH
from tests.helpers import bounds
from tests.helpers.attention import initial_state, moving, random_document_starts, widths
from tests.helpers.biased_attention import check
from tests.helpers.bounds import assert_close

pytestmark = [pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"), pytest.mark.numerics]


@pytest.fixture(autouse=True)
def gradients_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses them there, though the code that it does not compile computes them."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *tensors: None)


@pytest.mark.parametrize(("shape", "masked"), [((2, 128, 4, 4, 16), False), ((2, 300, 6, 2, 10), True)], ids=str)
def test_bias_equals_the_formula(shape: tuple[int, ...], masked: bool) -> None:
    check("flex", shape, "distance", masked)


@pytest.mark.parametrize(("size", "width", "masked"), [(16, 16, True), (MAX_VALUE_WIDTH, 2 * MAX_VALUE_WIDTH, False)], ids=str)
def test_moving_equals_blocks(size: int, width: int, masked: bool) -> None:
    """With one call and with several, and grouped queries."""
    results = []
    for backend in ("flex", "blocked"):
        q, k, v, delta = widths(2, 200, 4, 2, size, width)
        starts = random_document_starts(2, 200) if masked else None
        outputs = moving(backend, q, k, v, initial_state(delta), delta, starts)
        loss = outputs[0].sin().sum() + outputs[1].square().sum()
        results.append([*outputs, *torch.autograd.grad(loss, (q, k, v, delta))])
    for found, expected in zip(*results, strict=True):
        assert_close(found, expected, bounds.ATTENTION, floor=1e-3)


@pytest.mark.parametrize("length", [40, 128, 513, 640])
def test_blocks_are_those_of_all_pairs(length: int) -> None:
    """Which blocks a kernel skips, and which it does not mask, as torch finds them by looking at every pair."""
    starts = random_document_starts(3, length)
    starts[2] = 0

    def seen(batch: torch.Tensor, head: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return (column <= row) & (column >= starts[batch, row])

    found, expected = flex._documents(starts, 0), create_block_mask(seen, 3, None, length, length, device="cpu")
    assert found.seq_lengths == expected.seq_lengths and found.BLOCK_SIZE == expected.BLOCK_SIZE
    for kind in ("kv", "full_kv", "q", "full_q"):
        for part in (f"{kind}_num_blocks", f"{kind}_indices"):
            assert torch.equal(getattr(found, part), getattr(expected, part)), part


def test_blocks_are_found_once_a_batch() -> None:
    """All layers share them; another batch gets its own, also if it was written over the last."""
    starts = random_document_starts(2, 300)
    first = flex._documents(starts, starts._version)
    assert flex._documents(starts, starts._version) is first
    starts.zero_()
    second = flex._documents(starts, starts._version)
    assert second.kv_num_blocks.sum() > 0 and second.full_kv_num_blocks.sum() > first.full_kv_num_blocks.sum()


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
    """In torch's own, whose sizes do not depend on the bias, a bias takes more shared memory than an H100 has."""
    given = []

    def recorded(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **options: object) -> torch.Tensor:
        given.append(options["kernel_options"])
        return values

    monkeypatch.setattr(flex, "flex_attention", recorded)
    q, v = torch.zeros(1, 8, 2, 64, dtype=dtype), torch.zeros(1, 8, 2, width, dtype=dtype)
    flex.flex_values(q, q, v, DistanceBias(torch.zeros(2, 8)) if biased else None, None)
    assert given == [tiles]


@pytest.mark.parametrize("size", [64, 128])
def test_tiles_of_a_bias_fit_an_h100(size: int) -> None:
    """Queries, and for each stage keys, values and a bias in float32. torch's own tiles at R 64 would take 304 KiB so."""

    def needed(rows: int, columns: int, stages: int) -> int:
        return 2 * rows * size + stages * (2 * 2 * columns * size + 4 * rows * columns)

    assert needed(flex.BIASED["fwd_BLOCK_M"], flex.BIASED["fwd_BLOCK_N"], flex.BIASED["fwd_num_stages"]) <= 227 * 1024
    assert flex.BIASED["bwd_num_stages"] < 3, "torch's own, with which an H200 lacked 1 KiB"
