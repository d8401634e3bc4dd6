"""Changes to DeepSpeed's behavior through private names, read from version 0.19.8.

tests/helpers/checks/private_names.py lists these names and those in zero/stages/. tests/zero/setup/test_internals.py checks
them against a running engine: with another version of DeepSpeed, it fails naming what is missing.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import deepspeed.ops
from deepspeed import DeepSpeedEngine
from deepspeed.runtime.zero.config import ZERO_OPTIMIZATION

from megatape.utils.replaced_attribute import replaced_attribute

# DeepSpeed version with the internals used here.
TESTED_VERSION = "0.19.8"


def version_warning(installed: str) -> str | None:
    """Return a warning about an untested version of DeepSpeed, or None for the tested one.

    Args:
        installed: Installed version. A local part such as +cu130 is ignored.
    """
    if installed.partition("+")[0] == TESTED_VERSION:
        return None
    return (
        f"DeepSpeed is {installed}, and only {TESTED_VERSION} was tested: MegaTAPE replaces parts of it, which may have "
        f"changed (docs/architecture.md); compare the first losses, or pip install deepspeed=={TESTED_VERSION}"
    )


def disable_compiled_ops() -> None:
    """Keep DeepSpeed from compiling an unused shared-memory operator on a CPU, which would need a C++ compiler."""
    deepspeed.ops.__compatible_ops__ = {}


@contextmanager
def same_optimizer_at_stages_1_and_2() -> Iterator[None]:
    """Give engines made inside the same optimizer class at stages 1 and 2.

    For bfloat16 at stage 1 with gradients summed in float32, DeepSpeed would choose a class whose layout Stage12 cannot read.
    """

    def choose(engine: DeepSpeedEngine, _: Any) -> str | None:
        if engine.zero_optimization():
            return ZERO_OPTIMIZATION
        return None

    with replaced_attribute(DeepSpeedEngine, "_do_optimizer_sanity_check", choose):
        yield


def import_muon_uncompiled() -> None:
    """Import DeepSpeed's Muon without compiling its kernels, which would import torch's compiler.

    DeepSpeed always imports its Muon, even for other optimizers.
    """
    compiler = importlib.import_module("deepspeed.runtime.compiler")

    def leave_uncompiled() -> Any:
        return lambda kernel: kernel

    with replaced_attribute(compiler, "compile", leave_uncompiled):
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
