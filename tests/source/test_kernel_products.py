"""The planner counts as many products as the source of each Triton kernel has."""

import ast
import inspect
from typing import Any

import pytest


def test_kernel_products_match_their_source() -> None:
    pytest.importorskip("triton")
    from megatape.attention.kernels import head_launches
    from megatape.encodings.kernels import update

    counted = {kernel: products.content + products.state for kernel, products in head_launches.PRODUCTS.items()}
    counted |= {kernel: products.weight + products.state for kernel, products in update.PRODUCTS.items()}
    in_source = {kernel: count_products(kernel) for kernel in counted}
    assert in_source == counted


def count_products(kernel: Any) -> int:
    """Return the number of products in the source of a kernel, and of the Triton functions that it calls."""
    num_products = 0
    for node in ast.walk(ast.parse(inspect.getsource(kernel.fn))):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        called = kernel.fn.__globals__.get(name)
        if name == "tl.dot":
            num_products += 1
        elif hasattr(called, "fn"):
            num_products += count_products(called)
    return num_products
