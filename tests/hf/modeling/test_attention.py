"""Prompts are read by a flash kernel, whose memory grows linearly with the tokens."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from megatape.hf.modeling.attention import find_spans, one_query_attention
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.exports import Exported, random_tokens

pytestmark = pytest.mark.numerics


# Token spans in rows of 20
SPANS = [
    (7, 20),  # padded on the left
    (0, 9),  # padded on the right
    (3, 18),  # padded on both sides
    # No padding.
    (0, 20),
    # Only padding.
    (0, 0),
]


def padded_mask() -> Tensor:
    mask = torch.zeros(len(SPANS), 20, dtype=torch.long)
    for row, span in enumerate(SPANS):
        mask[row, slice(*span)] = 1
    return mask


class Sizes(TorchDispatchMode):
    """Records the number of elements in the largest tensor created in the block."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.largest = max(self.largest, leaf.untyped_storage().nbytes() // leaf.element_size())
        return result


@torch.no_grad()
@pytest.mark.parametrize(
    ("shape", "encoding"), [("grouped", "tape"), ("plain", "tape"), ("odd", "tape"), ("grouped", "tape_vector")]
)
def test_prompts_take_the_flash_kernel(exported: Callable[..., Exported], shape: str, encoding: str) -> None:
    """Complete, padded and cached prompts all have the logits of plain matrix products."""
    export = exported(shape, encoding)
    model = export.load()
    plain_model = export.load(attn_implementation="eager")
    batch = random_tokens(len(SPANS), 20)
    mask = padded_mask()

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # raises an error if it does not support the arguments
        logits = model(batch).logits
        padded_logits = model(batch, attention_mask=mask).logits
        cache = model(batch[:, :12]).past_key_values
        cached_logits = model(batch[:, 12:], past_key_values=cache).logits

    expected = plain_model(batch).logits
    assert_close(logits, expected, bounds.EXPORTED)
    assert_close(cached_logits, expected[:, 12:], bounds.EXPORTED)
    expected_padded = plain_model(batch, attention_mask=mask).logits
    for row, span in enumerate(SPANS[:-1]):
        tokens = slice(*span)
        assert_close(padded_logits[row, tokens], expected_padded[row, tokens], bounds.EXPORTED, what=span)
    assert padded_logits.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("padded", [False, True])
def test_no_tensor_has_the_size_of_all_pairs(exported: Callable[..., Exported], padded: bool) -> None:
    model = exported("grouped").load().model
    length = 512
    mask = torch.ones(2, length, dtype=torch.long)
    if padded:
        mask[0, :100] = 0
    with Sizes() as sizes:
        model(random_tokens(2, length), attention_mask=mask)
    assert 2 * length * 32 <= sizes.largest < length**2 // 2


def test_spans_of_padded_rows() -> None:
    assert find_spans(padded_mask()) == SPANS
    assert find_spans(torch.ones(2, 5)) is None
    assert find_spans(torch.tensor([[0, 1, 0, 1], [1, 1, 1, 1]])) is None


def test_padding_between_tokens_is_masked(exported: Callable[..., Exported]) -> None:
    export = exported("grouped")
    batch = random_tokens(2, 12)
    mask = torch.ones_like(batch)
    mask[0, 4:6] = 0
    with torch.no_grad():
        logits = export.load(attn_implementation="sdpa")(batch, attention_mask=mask).logits
        expected = export.load(attn_implementation="eager")(batch, attention_mask=mask).logits
    assert_close(logits[mask.bool()], expected[mask.bool()], bounds.EXPORTED)


@pytest.mark.parametrize("kind", ["none", "hidden", "added", "added by head"])
def test_one_query_equals_attention_on_repeated_keys(kind: str) -> None:
    torch.manual_seed(0)
    query = torch.randn(2, 6, 1, 8)
    key = torch.randn(2, 3, 11, 8)
    value = torch.randn(2, 3, 11, 20)
    first_visible = torch.tensor([0, 4])[:, None, None, None]
    masks = {
        "none": None,
        "hidden": torch.arange(11).expand(2, 1, 1, 11) > first_visible,
        "added": torch.randn(2, 1, 1, 11),
        "added by head": torch.randn(2, 6, 1, 11),
    }
    mask = masks[kind]
    keys = key.repeat_interleave(2, 1)
    values = value.repeat_interleave(2, 1)
    expected = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=0.3)
    assert_close(one_query_attention(query, key, value, mask, 0.3), expected.transpose(1, 2), bounds.ATTENTION)
