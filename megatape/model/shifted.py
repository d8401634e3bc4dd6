"""Which heads of a model train with shifted sparse attention."""

from megatape.attention.shifted import ShiftedSparse
from megatape.model.attention import Attention
from megatape.model.transformer import Transformer


def shift_groups(model: Transformer, num_groups: int | None) -> None:
    """Let attention be shifted and sparse in training, with so many groups of tokens in a sample; None: dense. The second half
    of the whole model's key/value heads is shifted, whatever share of them this rank holds."""
    config, axis = model.config, model.axis
    own = config.num_kv_heads // axis.size
    num_unshifted = min(max(config.num_kv_heads // 2 - axis.rank * own, 0), own)
    for module in model.modules():
        if isinstance(module, Attention):
            module.sparse = None if num_groups is None else ShiftedSparse(num_groups, num_unshifted)
