"""Modules that ZeRO stage 3 treats as one."""

from torch import nn


class GatheredUnit(nn.Module):
    """Module whose weights ZeRO stage 3 gathers and releases together, with those of all modules inside it.

    The modules inside have no hooks, so torch.compile can turn the whole call into one graph. Calls with a backward pass must
    pass all tensors that need a gradient as positional arguments: torch does not find them inside tuples. DeepSpeed would then
    reduce the gradients of the weights before they exist.
    """
