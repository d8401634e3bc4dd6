"""Postpones the import of torch's compiler, six seconds of every rank, until something is compiled.

torch and DeepSpeed mention it where nothing is compiled: they mark functions of the optimizer, of ZeRO and of activation
checkpointing as not to be compiled, and DeepSpeed has the kernels of its Muon compiled whatever the optimizer is.
"""

import functools
import importlib
import sys
from types import FunctionType, ModuleType
from typing import Any
from unittest.mock import patch

COMPILER = "torch._dynamo"


def postpone_compiler() -> None:
    """Let mentions of the compiler no longer import it. Call it before the first optimizer is made."""
    if COMPILER in sys.modules:
        return
    sys.modules[COMPILER] = Postponed(COMPILER, disable=_disable, graph_break=lambda: None, config=_CONFIG)
    with patch("deepspeed.runtime.compiler.compile", lambda: lambda kernel: kernel):
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")


class Postponed(ModuleType):
    """In the place of a module: `known` attributes, and as soon as another is read or one is set, the module itself."""

    def __init__(self, name: str, **known: Any) -> None:
        super().__init__(name)
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # asked of all modules, by inspect for example
            raise AttributeError(name)
        return getattr(_imported(self.__name__), name)

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            setattr(_imported(self.__name__), name, value)


def _postponed() -> bool:
    return isinstance(sys.modules.get(COMPILER), Postponed)


def _imported(name: str) -> ModuleType:
    if _postponed():
        del sys.modules[COMPILER]
    return importlib.import_module(name)


_CONFIG = Postponed(f"{COMPILER}.config", error_on_nested_fx_trace=True)  # its default, which checkpointing reads


def _disable(function: Any, *options: Any, **more: Any) -> Any:
    """The compiler's own `disable`, as soon as there is a compiler."""

    @functools.cache
    def disabled() -> Any:
        return _imported(COMPILER).disable(function, *options, **more)

    def call(*arguments: Any, **named: Any) -> Any:
        return (function if _postponed() else disabled())(*arguments, **named)

    return functools.wraps(function)(call) if isinstance(function, FunctionType) else disabled()
