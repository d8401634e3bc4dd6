"""Attention by blocks of query rows in plain PyTorch, on any device, and around a ring of context-parallel ranks.

* function.py: attention as one differentiable function; operators.py: its two passes in graphs of torch.compile.
* passes.py: the two passes, of the steps in online_softmax.py.
* row_blocks.py: the blocks, the keys that each sees, and masks; block_bias.py: the bias of a block.
* folding.py: layout of queries, keys and values; ring.py: keys and values of other ranks.
"""
