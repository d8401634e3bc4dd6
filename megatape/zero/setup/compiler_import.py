"""Delays importing torch's compiler until something is compiled, which saves a rank 3 s of processor time at its start.

torch and DeepSpeed refer to the compiler even if nothing is compiled: they exclude functions of the optimizer, ZeRO and
activation checkpointing from compiling, and DeepSpeed compiles the kernels of its Muon for every optimizer.
"""

import functools
import importlib
import importlib.util
import sys
from types import FunctionType, ModuleType
from typing import Any

from megatape.zero.setup.internals import import_muon_uncompiled

COMPILER = "torch._dynamo"


def import_compiler_on_use() -> None:
    """Put a module in place of the compiler that imports it when it is first used, unless it has been imported.

    Call it before making the first optimizer. It stays in effect until something is compiled: the first step of a run would
    import the compiler, too.
    """
    if COMPILER in sys.modules:
        return
    spec = importlib.util.find_spec(COMPILER)
    assert spec is not None, f"torch has no {COMPILER}"
    module = importlib.util.module_from_spec(spec)
    sys.modules[COMPILER] = module
    # Activation checkpointing reads the compiler's configuration. Importing it takes no time.
    importlib.import_module(f"{COMPILER}.config")
    module.__class__ = LazyModule
    # Stand-ins that behave like the compiler's functions outside a compiled function.
    vars(module).update(disable=_disable, graph_break=lambda: None)
    # Without a path, no submodule can be imported before its package.
    del module.__path__
    import_muon_uncompiled()


class LazyModule(ModuleType):
    """Module whose code runs when a missing attribute is read.

    Loading keeps the object, so existing references stay valid, and all its classes are the real ones.
    """

    def __getattr__(self, name: str) -> Any:
        # Libraries such as inspect read special attributes of every module.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        _load(self)
        return getattr(self, name)


def _load(module: ModuleType) -> None:
    """Run the code of a lazy module, unless it has run before."""
    if isinstance(module, LazyModule):
        module.__class__ = ModuleType  # type: ignore[assignment]
        spec = module.__spec__
        assert spec is not None and spec.loader is not None
        module.__path__ = list(spec.submodule_search_locations or ())
        spec.loader.exec_module(module)


def _disable(function: Any, *options: Any, **more: Any) -> Any:
    """Exclude a function from compiling, by the compiler's own `disable` as soon as it is loaded."""

    @functools.cache
    def disabled() -> Any:
        compiler = sys.modules[COMPILER]
        _load(compiler)
        return compiler.disable(function, *options, **more)

    def call(*arguments: Any, **named: Any) -> Any:
        is_lazy = isinstance(sys.modules[COMPILER], LazyModule)
        callee = function
        if not is_lazy:
            callee = disabled()
        return callee(*arguments, **named)

    if not isinstance(function, FunctionType):
        return disabled()
    return functools.wraps(function)(call)
