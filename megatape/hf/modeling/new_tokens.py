"""Derives the properties of new tokens that attention needs: mask, padding, documents."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Cache
from transformers.masking_utils import create_causal_mask

from .attention import Spans, find_spans
from .configuration_tape import TapeConfig


class NewTokens(NamedTuple):
    """Properties of the new tokens.

    Attributes:
        mask: Attention mask made by transformers (attention.py). None if the mask is causal, or if there are spans.
        past: Number of cached tokens. Only set if the encoding has a bias.
        spans: Spans of the rows without padding, instead of a mask (attention.py).
        padding: bool [B, N], true on padding. None if nothing is padding.
        document_starts: int64 [B, N], index of the first token in each token's document. None if each row is one text.
        num_keys: int64 [B or 1, N], number of keys visible to each token without a window. Only set if attention scales by it.
        rows: Index of each token in its row of the batch, [N].
    """

    mask: Tensor | None
    past: int
    spans: Spans | None
    padding: Tensor | None
    document_starts: Tensor | None
    num_keys: Tensor | None
    rows: Tensor


def describe_tokens(
    config: TapeConfig,
    x: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    past_key_values: Cache | None,
    has_bias: bool,
) -> tuple[NewTokens, Tensor]:
    """Derive properties of new tokens from the arguments to TapeModel.forward.

    Args:
        config: Configuration of the model.
        x: Embedded new tokens, [B, N, D].
        attention_mask: [B, P + N], 0 on padding. None if nothing is padding.
        position_ids: [B, N] or [1, N]. None numbers the tokens in each row.
        past_key_values: Cache, before adding the new tokens.
        has_bias: Whether the encoding adds a bias to the scores.

    Returns:
        Properties of the new tokens, and their positions [B, N] or [1, N].
    """
    num_new = x.shape[1]
    num_past: int | Tensor = 0
    if past_key_values is not None:
        num_past = past_key_values.get_seq_length()
    rows = torch.arange(num_new, device=x.device) + num_past
    numbers = number_tokens(rows, attention_mask)

    document_starts = None
    if position_ids is None:
        position_ids = numbers
    elif attention_mask is None and past_key_values is None:
        # transformers also detects packed documents only in this case.
        document_starts = find_document_starts(position_ids.expand(x.shape[:2]))

    spans = None
    if not has_bias:
        spans = _spans_instead_of_mask(config, x, attention_mask, num_past)
    mask = None
    if spans is None:
        mask = create_causal_mask(
            config=config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=position_ids,
        )

    num_keys = None
    if config.attention_scale == "log_n":
        num_keys = count_keys(mask, numbers)
    past = 0
    if has_bias:
        past = int(num_past)
    padding = find_padding(attention_mask, num_new)
    return NewTokens(mask, past, spans, padding, document_starts, num_keys, rows), position_ids


def _spans_instead_of_mask(
    config: TapeConfig, x: Tensor, attention_mask: Tensor | None, num_past: int | Tensor
) -> Spans | None:
    """Return the spans of the rows without padding, if they can replace a mask over all pairs of tokens."""
    if config._attn_implementation != "sdpa" or torch.compiler.is_compiling():
        return None
    # A static cache counts its tokens in a tensor, which a compiled step must not branch on.
    if num_past != 0:
        return None
    # Attention of a single token reads the whole cache, so it needs a mask.
    if x.shape[1] == 1 or attention_mask is None or attention_mask.shape != x.shape[:2]:
        return None
    return find_spans(attention_mask)


def number_tokens(index: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Number the new tokens of each text, independently of caching. The numbers of padding are meaningless, but not negative.

    Args:
        index: Index of each new token in its row, [N].
        attention_mask: [B, K], 0 on padding, or None. Masks with four dimensions are ignored.

    Returns:
        int64 [B, N] or [1, N].
    """
    if attention_mask is None or attention_mask.dim() != 2:
        return index[None]
    numbers = attention_mask.long().cumsum(-1) - 1
    return numbers.clamp(min=0)[:, -len(index) :]


def find_document_starts(position_ids: Tensor) -> Tensor:
    """Find the documents in packed rows: a document starts wherever position_ids [B, N] do not continue.

    Returns:
        Index of the first token in each token's document, int64 [B, N].
    """
    is_start = F.pad(position_ids.diff(dim=1) != 1, (1, 0))
    index = torch.arange(position_ids.shape[1], device=position_ids.device)
    return (index * is_start).cummax(1).values


def count_keys(mask: Tensor | None, numbers: Tensor) -> Tensor:
    """Count the keys visible to each new token.

    Args:
        mask: Attention mask made by transformers, which separates documents. None for a causal mask.
        numbers: Numbers of the new tokens (`number_tokens`).

    Returns:
        int64 [B or 1, N], at least 1 even for padding that sees no key.
    """
    if mask is None:
        return numbers + 1
    is_visible = mask
    if mask.dtype != torch.bool:
        is_visible = mask == 0
    return is_visible.sum(-1)[:, 0].clamp(min=1)


def find_padding(attention_mask: Tensor | None, num_tokens: int) -> Tensor | None:
    """Return which new tokens are padding, bool [B, N], or None without a mask of two dimensions."""
    if attention_mask is None or attention_mask.dim() != 2:
        return None
    return attention_mask[:, -num_tokens:] == 0
