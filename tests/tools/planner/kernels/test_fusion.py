"""Work of a graph that torch.compile fuses."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from megatape.tools.planner.kernels.fusion import fused_work
from megatape.tools.planner.kernels.operations import KernelKind, Operation


def test_fusion_leaves_the_operands_of_products() -> None:
    """Tensors between products are read and written once, by one kernel before a product and one after it."""

    def function(x: Tensor, weight: Tensor) -> Tensor:
        y = F.silu(x.float()) * x
        return (y.to(x.dtype) @ weight).float().exp() + 1

    with torch.device("meta"):
        graph = make_fx(function, tracing_mode="fake")(*(torch.empty(16, 16, dtype=torch.bfloat16) for _ in range(2)))
    numbers = 16 * 16
    assert fused_work(graph) == {
        Operation(KernelKind.FUSED, 0, numbers * (2 + 2)): 1,
        Operation(KernelKind.PRODUCT, 2 * 16**3, numbers * (2 + 2 + 2)): 1,
        Operation(KernelKind.FUSED, 0, numbers * (2 + 4)): 1,
    }
