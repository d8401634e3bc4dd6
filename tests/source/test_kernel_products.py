"""The planner counts as many products as the source of each Triton kernel has."""

import inspect

import pytest


def test_kernel_products_match_their_source() -> None:
    pytest.importorskip("triton")
    from megatape.attention.kernels import distances, head_launches
    from megatape.encodings.kernels import update

    counted = {kernel: products.content + products.state for kernel, products in head_launches.PRODUCTS.items()}
    counted |= {kernel: products.weight + products.state for kernel, products in update.PRODUCTS.items()}
    for kernel, num_products in counted.items():
        functions = [kernel]
        if kernel is head_launches.distances_kernel:
            functions.append(distances._d_scores)
        source = "".join(inspect.getsource(function.fn) for function in functions)
        # scores_tile has one product.
        num_in_source = source.count("tl.dot(") + source.count("scores_tile(")
        assert num_in_source == num_products, kernel
