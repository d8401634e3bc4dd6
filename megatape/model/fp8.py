"""Which products of a model are in FP8."""

from megatape.model.transformer import Transformer
from megatape.parallel.fp8 import Product
from megatape.parallel.layers import ColumnLinear, RowLinear


def multiply_in_fp8(model: Transformer, product: Product) -> None:
    """Let blocks multiply by q, k, v, o, gate, up and down with `product` in training.

    The rest stays as it is: embedding is no product; the head's logits and their loss need the precision; what position
    encodings multiply is too small to gain anything."""
    for module in model.blocks.modules():
        if isinstance(module, ColumnLinear | RowLinear):
            module.fp8 = product
