"""Work of the model's parts that torch.compile fuses.

Everything between two matrix products counts as one kernel, which reads what other kernels have written, and writes what others
read. torch's own partitioner decides what is saved for the backward pass. Inductor, which may fuse less, does not run.
"""

import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from megatape.accounting.extrapolation import scaled
from megatape.accounting.meta_device import in_precision, on_shapes
from megatape.accounting.rank_model import build_rank_model
from megatape.accounting.workload import Workload
from megatape.attention.rotation import PositionState
from megatape.config import ModelConfig
from megatape.encodings.encoding import Encoding, EncodingModule, positioned_layers
from megatape.model.block import Block
from megatape.model.compilation import content_after_block
from megatape.model.transformer import Transformer
from megatape.registry import AUTO
from megatape.tools.planner.counting import count, run_backward
from megatape.tools.planner.operations import Kernel, Operation, Work, count_flops, operation, touched_bytes
from megatape.utils.torch_internals import FakeTensorMode, aot_backend, is_view


class CompiledPart(NamedTuple):
    """A compiled part of the blocks (model/build.py).

    Attributes:
        function: Function to compile.
        weights: Module with its weights.
        args: Its arguments.
        times: Number of blocks that run it.
    """

    function: Callable[..., Any]
    weights: nn.Module
    args: list[Any]
    times: int


def gained_by_fusion(workload: Workload) -> Work:
    """Return how torch.compile changes the work of all blocks: compiled parts, minus the same parts uncompiled."""
    recomputed = int(workload.recomputes_blocks) + int(workload.chunk_tokens is not None)
    gained: Work = Counter()
    compiled = _compiled(replace(workload, attention=AUTO))
    with on_shapes(workload.precision):
        # The last compiled part is the position update, which is missing here if kernels update the position state.
        for part, (forward, backward) in zip(_compiled_parts(workload), compiled, strict=False):
            with count() as plain_forward:
                part.function(*part.args)
            with count() as plain:
                run_backward(part.function(*part.args), part.weights, part.args)
            gained.update(scaled(forward, (1 + recomputed) * part.times))
            gained.update(scaled(backward, part.times))
            gained.update(scaled(plain, -part.times))
            gained.update(scaled(plain_forward, -recomputed * part.times))
    return gained


@cache
def _compiled(workload: Workload) -> list[tuple[Work, Work]]:
    """Return the work of each compiled part, (forward, backward), which does not depend on the attention backend.

    The parts run on a CPU's shapes, because there RMSNorm consists of operators that can be fused.
    """
    with in_precision(workload.precision), FakeTensorMode():
        return [compiled_work(part.function, part.weights, part.args) for part in _compiled_parts(workload)]


def _compiled_parts(workload: Workload) -> list[CompiledPart]:
    """Return the compiled parts. The last block with positions, and blocks without, do not update the position state."""
    model = build_rank_model(workload.with_model(nope_every=None), 2)
    block, x, positions = first_block_inputs(workload, model)
    *_, last_block = model.blocks
    assert isinstance(last_block, Block)
    num_layers = workload.model.num_layers
    num_moving = len(positioned_layers(workload.model)) - 1
    position = block.position
    args = [x, torch.empty_like(x).requires_grad_()]

    norm = CompiledPart(block.attention_norm, block.attention_norm, [x], num_layers)
    if position is None:
        return [norm, CompiledPart(partial(content_after_block, block), block, args, num_layers)]
    parts = [
        norm,
        CompiledPart(partial(content_after_block, block), block, args, num_moving),
        CompiledPart(partial(content_after_block, last_block), last_block, args, num_layers - num_moving),
    ]
    is_by_kernel = position.by_kernel and position.has_kernel(x.device)
    if not is_by_kernel:
        parts.append(_position_update(workload.model, model.encoding, position, x, positions, num_moving))
    return parts


def _position_update(
    config: ModelConfig,
    encoding: Encoding,
    position: EncodingModule,
    x: Tensor,
    positions: PositionState,
    times: int,
) -> CompiledPart:
    """Return the position update as a part. x: Content [batch, length, hidden size]."""
    leading = x.shape[:2]
    delta = x.new_empty(*leading, config.num_kv_heads, encoding.state_width, requires_grad=True)
    attended_positions = None
    if encoding.moves_state:
        attended_positions = x.new_empty(*leading, config.num_heads, encoding.state_width, requires_grad=True)

    def update(delta: Tensor, attended_positions: Tensor | None, m: Tensor) -> Tensor | None:
        return position(positions._replace(delta=delta), attended_positions, m).delta

    return CompiledPart(update, position, [delta, attended_positions, x], times)


def first_block_inputs(workload: Workload, model: Transformer) -> tuple[Block, Tensor, PositionState]:
    """Return the first block, with content of the shape that it gets and the initial position state."""
    batch = workload.micro_batch_size
    length = workload.sequence_length // workload.parallel.sample_replicas
    x = torch.empty(batch, length, workload.model.hidden_size, requires_grad=True)
    block = model.blocks[0]
    assert isinstance(block, Block)
    position_ids = torch.zeros(batch, length, dtype=torch.long)
    return block, x, PositionState(model.encoding.state(position_ids))


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

    torch.compiler.reset()  # It compiles a function only for a limited number of shapes.
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

    A fused kernel has the nodes of one stage: the number of successive matrix products before a node.
    """

    def __init__(self) -> None:
        self._work: Work = Counter()
        self._stages: dict[Node, int] = {}
        self._bases: dict[Node, Node] = {}  # view -> node that it looks at
        self._computed: set[Node] = set()  # results of fused kernels, neither inputs nor matrix products
        self._read: defaultdict[int, set[Node]] = defaultdict(set)  # stage -> nodes that its kernel reads
        self._written: set[Node] = set()  # nodes that a fused kernel writes to memory

    def add(self, node: Node) -> None:
        """Add the next node in the order of execution."""
        sources = [self._bases[source] for source in node.all_input_nodes]
        self._stages[node] = max((self._stages[source] for source in sources), default=0)
        self._bases[node] = node
        is_called = node.op == "call_function"
        if is_called and (node.target is operator.getitem or is_view(node.target)):
            self._bases[node] = sources[0]
            return

        reading_stage = None  # stage of the fused kernel that reads the sources
        if is_called and count_flops(node.target) is None:
            self._computed.add(node)
            reading_stage = self._stages[node]
        elif is_called:
            self._add_product(node)

        # Sources are also read by matrix products, and by the caller of the graph.
        for source in sources:
            is_in_same_kernel = source in self._computed and self._stages[source] == reading_stage
            if is_in_same_kernel:
                continue
            if source in self._computed:
                self._written.add(source)
            if reading_stage is not None:
                self._read[reading_stage].add(source)

    def _add_product(self, node: Node) -> None:
        """Count a matrix product, which starts a stage."""
        self._stages[node] += 1
        args = map_arg(node.args, _value)
        kwargs = map_arg(node.kwargs, _value)
        product = operation(node.target, args, kwargs, _value(node))
        assert product is not None
        self._work[product] += 1

    def finish(self) -> Work:
        """Return the work of all products and fused kernels."""
        for stage in {self._stages[node] for node in self._computed}:
            moved = [*self._read[stage]]
            moved += [node for node in self._written if self._stages[node] == stage]
            self._work[Operation(Kernel.FUSED, 0, touched_bytes(map(_value, moved)))] += 1
        return self._work


def _value(node: Node) -> Any:
    """Return a node's tensor, without memory."""
    meta: Mapping[str, Any] = node.meta
    return meta["val"]
