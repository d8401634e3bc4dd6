"""Removes overhead from DeepSpeed's hooks at stage 3."""

import inspect
from typing import Any

from deepspeed.runtime.zero.linear import LinearFunctionForZeroStage3
from deepspeed.utils import nvtx
from torch import nn
from torch.autograd import Function


def trim_zero3_hooks(module: nn.Module) -> None:
    """Remove overhead per call from the hooks of a module that DeepSpeed has initialized at stage 3.

    The hooks' autograd functions define `setup_context`, so torch inspects the signature of `forward` at each call. Storing
    the signature saves that. NVTX ranges are switched off, because training/callbacks/profile.py opens its own.
    """
    nvtx.enable_nvtx = False
    _store_signature(LinearFunctionForZeroStage3)
    for part in module.modules():
        attributes = vars(part)
        if "pre_bwd_fn" not in attributes:
            # The module is inside a GatheredUnit.
            continue
        _store_signature(attributes["pre_bwd_fn"])
        _store_signature(attributes["post_bwd_fn"])


def _store_signature(function: type[Function]) -> None:
    forward: Any = function.forward
    forward.__signature__ = inspect.signature(forward)
