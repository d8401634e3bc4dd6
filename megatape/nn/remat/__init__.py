"""Rematerialization: the backward pass rebuilds what is cheap to compute and large to save.

The life of such a tensor x, for example the sum that several linear layers multiply:

1. Code computing x returns a `Remat` beside it (rebuilt.py). Its recipe is a function with arguments that other operations
   save anyway, so saving them costs nothing.
2. Callers pass the Remat on, by keyword, because ZeRO stage 3's hooks wrap tensors among positional arguments. The
   linear layers of an encoding, which gets plain tensors, find it in the forward context (nn/forward_context.py).
3. A layer that multiplies x checks that x is the Remat's tensor, unchanged (`Remat.matching`). Autograd then saves the
   recipe's arguments instead of x, and the layer registers as a consumer of the `SharedInput`. Other code sees a plain tensor.
   x is freed once the forward pass no longer uses it.
4. In the backward pass, the first of these layers rebuilds x in the SharedInput, and the others use the same tensor.
5. The last layer frees it.

Files, in reading order:

* shared_input.py: counts the layers, rebuilds x and frees it.
* remat.py: `Recipe` and `Remat`, which connect x to its recipe and its SharedInput.
* rebuilt.py: operations returning a tensor with its Remat.
* gathered_input.py: the same for tensor-parallel ranks, which save their own tokens and gather the rest again.
* recompute.py: activation checkpointing. Saves only a function's arguments, and runs all of it again.
"""
