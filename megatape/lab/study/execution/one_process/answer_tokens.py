"""Content of chosen tokens alone after the last block, where the loss or a score reads no others.

In samples of a task, only the tokens before an answer have a target: 2% to 35% of them. Blocks before the last one need all
tokens, because later tokens attend to them. In the last block, other tokens only pass on keys and values. Leaving out the rest
of their computation changes neither loss nor gradients.
"""

import torch
from torch import Tensor

from megatape.model.block import Block, Streams
from megatape.model.transformer import Transformer
from megatape.nn.loss import cross_entropy
from megatape.nn.targets import IGNORE_INDEX


def target_places(targets: Tensor) -> Tensor:
    """Return the places of tokens with a target, as indices into the flattened samples, [n].

    Args:
        targets: Target ids or IGNORE_INDEX, [B, N].
    """
    return (targets.flatten() != IGNORE_INDEX).nonzero().squeeze(1)


def loss_sum(
    model: Transformer,
    tokens: Tensor,
    targets: Tensor,
    position_ids: Tensor,
    document_starts: Tensor | None,
    places: Tensor,
) -> Tensor:
    """Return the cross entropy summed over all targets, as `Transformer.forward` does.

    Args:
        model: Model on one rank, without adapters that drop out.
        tokens: Token ids, [B, N].
        targets: Target ids or IGNORE_INDEX, [B, N].
        position_ids: Position ids, [B, N].
        document_starts: Index of the first token that each token may attend to, [B, N], or None.
        places: Places of all tokens with a target, see `target_places`.
    """
    content = content_at(model, tokens, position_ids, document_starts, places)
    chosen_targets = targets.flatten().index_select(0, places)[None]
    return cross_entropy(content, _output_matrix(model), chosen_targets, model.head.formula)


def logits_at(model: Transformer, tokens: Tensor, position_ids: Tensor, places: Tensor) -> Tensor:
    """Return the logits of chosen tokens, [n, V]. Arguments as in `loss_sum`, without documents."""
    content = content_at(model, tokens, position_ids, None, places)
    return model.head.logits(content, model.tied_weight)[0]


def content_at(
    model: Transformer,
    tokens: Tensor,
    position_ids: Tensor,
    document_starts: Tensor | None,
    places: Tensor,
) -> Tensor:
    """Return the normalized content of chosen tokens after the last block, [1, n, D]. Arguments as in `loss_sum`."""
    streams = model.start(tokens, position_ids, document_starts)
    *blocks, last = model.blocks
    for block in blocks:
        streams = block(streams, document_starts)
    assert isinstance(last, Block)
    return model.norm(_last_block_at(last, streams, document_starts, places))


def _last_block_at(block: Block, streams: Streams, document_starts: Tensor | None, places: Tensor) -> Tensor:
    """Return the content of chosen tokens after a block that does not update the position state, [1, n, D]."""
    assert not block.updates_state
    attention = block.attention
    x = streams.x
    h = block.attention_norm(x)
    q, k, v = attention.heads(h)
    features = attention.features(h, q, k)
    attended, _ = attention.encode_and_attend(q, k, v, features, streams.state, document_starts)
    x = _choose(x, places) + attention.output(_choose(attended.flatten(2), places))
    return x + block.mlp(block.mlp_norm(x))


def _choose(x: Tensor, places: Tensor) -> Tensor:
    """Return the rows of chosen tokens, [B, N, size] -> [1, n, size]."""
    return torch.index_select(x.flatten(0, 1), 0, places)[None]


def _output_matrix(model: Transformer) -> Tensor:
    tied = model.tied_weight
    if tied is not None:
        return tied
    assert model.head.weight is not None
    return model.head.weight
