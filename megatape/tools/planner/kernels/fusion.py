"""Work of a function that torch.compile fuses.

Everything between two matrix products counts as one kernel, which reads what other kernels have written, and writes what others
read. torch's own partitioner decides what is saved for the backward pass. Inductor, which may fuse less, does not run.
"""

import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from megatape.tools.planner.kernels.counting import run_backward
from megatape.tools.planner.kernels.operations import KernelKind, Operation, Work, count_flops, operation, touched_bytes
from megatape.utils.pytorch.torch_internals import aot_backend, is_view


def compiled_work(function: Callable[..., Any], weights: nn.Module, args: list[Any]) -> tuple[Work, Work]:
    """Return the work of a compiled function, (forward, backward).

    Args:
        function: Function to compile.
        weights: Module with the function's weights.
        args: Arguments of the function.
    """
    graphs: list[Work] = []

    def compiler(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(fused_work(graph))
        return graph.forward

    # Forget earlier shapes, because torch compiles a function only for a limited number of them.
    torch.compiler.reset()
    compiled = torch.compile(function, backend=aot_backend(compiler), fullgraph=True, dynamic=False)
    run_backward(compiled(*args), weights, args)
    forward, backward = graphs
    return forward, backward


def fused_work(graph: GraphModule) -> Work:
    """Return the work of a graph of ATen operators, with one kernel between matrix products."""
    fusion = _Fusion()
    for node in graph.graph.nodes:
        fusion.add(node)
    return fusion.finish()


class _Fusion:
    """Divides a graph's nodes into matrix products and fused kernels.

    A node's kernel is numbered by the successive matrix products before the node: all other nodes between two products are one
    fused kernel.
    """

    def __init__(self) -> None:
        self._work: Work = Counter()
        # Number of each node's kernel.
        self._kernel_of: dict[Node, int] = {}
        # Node with the memory of each view. Other nodes are their own base.
        self._bases: dict[Node, Node] = {}
        # Nodes computed by fused kernels: all but inputs and matrix products.
        self._fused: set[Node] = set()
        # Nodes that each fused kernel reads from memory.
        self._read_by: defaultdict[int, set[Node]] = defaultdict(set)
        # Nodes that a fused kernel writes to memory.
        self._written: set[Node] = set()

    def add(self, node: Node) -> None:
        """Add the next node in the order of execution."""
        sources = [self._bases[source] for source in node.all_input_nodes]
        self._kernel_of[node] = max((self._kernel_of[source] for source in sources), default=0)
        self._bases[node] = node
        if node.op != "call_function":
            # An input, or the outputs that the caller of the graph reads.
            self._read_from_memory(sources)
        elif node.target is operator.getitem or is_view(node.target):
            self._bases[node] = sources[0]
        elif count_flops(node.target) is None:
            self._add_fused(node, sources)
        else:
            self._read_from_memory(sources)
            self._add_product(node)

    def _add_fused(self, node: Node, sources: list[Node]) -> None:
        """Add a node to its fused kernel, which reads the results of other kernels from memory."""
        kernel = self._kernel_of[node]
        others = [source for source in sources if source not in self._fused or self._kernel_of[source] != kernel]
        self._fused.add(node)
        self._read_by[kernel].update(others)
        self._read_from_memory(others)

    def _read_from_memory(self, sources: list[Node]) -> None:
        """Let the fused kernels that compute these nodes write them to memory."""
        self._written.update(source for source in sources if source in self._fused)

    def _add_product(self, node: Node) -> None:
        """Count a matrix product, after which another fused kernel begins."""
        self._kernel_of[node] += 1
        args = map_arg(node.args, _value)
        kwargs = map_arg(node.kwargs, _value)
        product = operation(node.target, args, kwargs, _value(node))
        assert product is not None
        self._work[product] += 1

    def finish(self) -> Work:
        """Return the work of all products and fused kernels."""
        for kernel in {self._kernel_of[node] for node in self._fused}:
            moved = [*self._read_by[kernel]]
            moved += [node for node in self._written if self._kernel_of[node] == kernel]
            moved_bytes = touched_bytes(map(_value, moved))
            self._work[Operation(KernelKind.FUSED, 0, moved_bytes)] += 1
        return self._work


def _value(node: Node) -> Any:
    """Return a node's tensor, without memory."""
    meta: Mapping[str, Any] = node.meta
    return meta["val"]
