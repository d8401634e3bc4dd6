"""Less work for the host at ZeRO-3, whose hooks run in Python around every module of every micro-batch."""

import inspect
from typing import Any

from deepspeed.runtime.zero.linear import LinearFunctionForZeroStage3
from deepspeed.utils import nvtx
from torch import nn
from torch.autograd import Function


def quicken_hooks(module: nn.Module) -> None:
    """Let the hooks of a module that DeepSpeed has initialized at stage 3 do only what they are for.

    Their autograd functions set up their context apart from `forward`, and at each call of such a function torch works out its
    parameters anew: here they are remembered. And each hook opens ranges for a profiler of NVIDIA's; ours are in
    training/profile.py."""
    nvtx.enable_nvtx = False
    _remember_parameters(LinearFunctionForZeroStage3)
    for part in map(vars, module.modules()):
        _remember_parameters(part["pre_bwd_fn"])
        _remember_parameters(part["post_bwd_fn"])


def _remember_parameters(function: type[Function]) -> None:
    forward: Any = function.forward
    forward.__signature__ = inspect.signature(forward)
