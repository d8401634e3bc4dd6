"""The package flash-attn-4 without a GPU: its private functions, and its kernels compiled for Hopper."""

import inspect
import json
import subprocess
import sys
from dataclasses import fields

import pytest

from megatape.attention.fa4 import package
from tests.helpers.models.fa4_stand_in import BwdConfig, Interface

pytestmark = pytest.mark.fa4

# Shared memory per program on a GPU with compute capability 9.0
SHARED_BYTES = 227 * 1024
# Products of a pair of tiles: scores and values, and five in the backward pass, each of several instructions
MIN_PRODUCTS = {"forward": 8, "backward": 15}


def test_the_tried_version_is_installed() -> None:
    assert package.version_problem() is None


@pytest.mark.parametrize("name", ["_flash_attn_fwd", "_flash_attn_bwd", "_tile_size_bwd_sm90"])
def test_private_functions_have_the_arguments_that_are_used(name: str) -> None:
    """The stand-in for the package has the arguments of the real function, in the same order and with the same defaults."""
    from flash_attn.cute import interface

    actual = inspect.signature(getattr(interface, name)).parameters
    expected = inspect.signature(getattr(Interface(), name)).parameters
    common = [argument for argument in actual if argument in expected]
    assert common == list(expected)
    for argument, parameter in expected.items():
        assert actual[argument].default == parameter.default, argument
    required = [argument for argument, parameter in actual.items() if parameter.default is inspect.Parameter.empty]
    assert set(required) <= set(expected)


def test_tiles_have_the_fields_that_are_used() -> None:
    from flash_attn.cute import interface

    actual = [(field.name, field.default) for field in fields(interface.BwdConfig)]
    assert actual == [(field.name, field.default) for field in fields(BwdConfig)]


def test_compiled_kernels_fit_a_hopper_gpu() -> None:
    """Our kernels fit the shared memory, spill no registers and use tensor cores. The package compiles larger ones as well."""
    command = [sys.executable, "-m", "tests.kernels.compiled_fa4", "json"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    rows = json.loads(process.stdout)
    assert len(rows) >= 20
    for case, kernel, _, shared, registers, spills, products in rows:
        assert shared <= SHARED_BYTES, (case, kernel)
        assert registers <= 240, (case, kernel)
        assert spills == 0, (case, kernel)
        assert products >= MIN_PRODUCTS[kernel], (case, kernel)
