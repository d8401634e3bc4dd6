"""Cheaper hooks of ZeRO-3, which run in Python around every module in every micro-batch."""

import inspect
from typing import Any

from deepspeed.runtime.zero.linear import LinearFunctionForZeroStage3
from deepspeed.utils import nvtx
from torch import nn
from torch.autograd import Function


def quicken_hooks(module: nn.Module) -> None:
    """Make the hooks of a module that DeepSpeed has initialized at stage 3 cost the host less.

    Their autograd functions define `setup_context`. At each call of such a function torch inspects the signature of `forward`,
    which is stored here instead. NVTX ranges are switched off: those of training/profile.py take their place."""
    nvtx.enable_nvtx = False
    _store_signature(LinearFunctionForZeroStage3)
    for part in map(vars, module.modules()):
        _store_signature(part["pre_bwd_fn"])
        _store_signature(part["post_bwd_fn"])


def _store_signature(function: type[Function]) -> None:
    forward: Any = function.forward
    forward.__signature__ = inspect.signature(forward)
