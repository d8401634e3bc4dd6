"""What a GPU does in a training step, operation by operation, as megatape/tools/planner/operations.py has them.

A model runs on the meta device. Every operator of PyTorch is counted as it is dispatched, as a kernel of its own: attention
and RMSNorm are one operator, as on a GPU, and so is each launch of our own kernels. What torch.compile fuses is counted by
`fused_work` instead: between two matrix products everything is one kernel, which reads what others have written and writes
what others read; torch's own partitioner decides what is kept for the backward pass. Inductor, which may fuse less, is not
asked. A kernel reads each input once and writes each output once.
"""

import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from megatape.accounting.trace import (
    build,
    changed,
    count_once,
    depths,
    extrapolate_all,
    on_shapes,
    precision_of,
    scaled,
)
from megatape.attention.rotation import PositionState
from megatape.config import Config
from megatape.encodings.encoding import positioned_layers
from megatape.model.block import Block
from megatape.model.transformer import Transformer
from megatape.registry import AUTO
from megatape.tools.planner.operations import Operation, Work, count_flops, operation, tensors_of, touched_bytes
from megatape.utils.torch_internals import FakeTensorMode, TorchDispatchMode, aot_backend, fused_on_shapes, is_view


@count_once
def step_work(config: Config) -> Work:
    """A forward and backward pass over a micro-batch on one rank, with the attention that a run gets on a GPU.

    Documents count as one, and the optimizer is not in it.

    Counted at two depths and extrapolated to all layers, which is exact.
    """
    work = eager_work(config).copy()
    if config.training.compile:
        work.update(_gained_by_fusion(config))
    return work


def eager_work(config: Config) -> Work:
    """Return the work of `step_work` without torch.compile, with one operation per kernel that Python launches."""
    return _eager_work(changed(config, "training", compile=False))


@count_once
def _eager_work(config: Config) -> Work:
    counts = {num_layers: _step(config, num_layers) for num_layers in depths(config)}
    return extrapolate_all(counts, config.model.num_layers)


def attention_layer_work(config: Config) -> Work:
    """Attention and position update of the first block, without gradients, as `megatape benchmark efficiency` times it."""
    with on_shapes(config), torch.no_grad():
        model = build(config, 2)
        block, x, positions = _inputs(config, model)
        with count() as work:
            attended, attended_positions = block.attention(x, positions, move=True)
            if block.position is not None:
                block.position(positions, attended_positions, attended)
    return work


def _step(config: Config, num_layers: int) -> Work:
    with on_shapes(config):
        model = build(config, num_layers)
        tokens = torch.zeros(config.training.micro_batch_size, config.data.sequence_length, dtype=torch.long)
        with count() as work:
            loss = model(tokens, tokens, targets=tokens, dropout_seeds=tokens[:, 0])
            if loss.requires_grad:  # not where a shallow model lacks the layers that are trained
                loss.backward()
    return work


def _gained_by_fusion(config: Config) -> Work:
    """What torch.compile changes in all blocks (model/build.py)."""
    again = config.training.recomputes_blocks + (config.training.chunk_tokens is not None)
    gained: Work = Counter()
    compiled = _compiled(changed(config, "training", attention=AUTO))
    with on_shapes(config):
        # The last part, the position update, is not among those of a run whose kernels do it.
        for (function, weights, args, times), (forward, backward) in zip(_compiled_parts(config), compiled, strict=False):
            with count() as plain_forward:
                function(*args)
            with count() as plain:
                run_backward(function(*args), weights, args)
            for work, passes in ((forward, 1 + again), (backward, 1), (plain, -1), (plain_forward, -again)):
                gained.update(scaled(work, passes * times))
    return gained


@cache
def _compiled(config: Config) -> list[tuple[Work, Work]]:
    """The parts below as compiled, forward and backward: the same with every attention.

    On shapes of a CPU, because there RMSNorm consists of operators that can be fused.
    """
    with precision_of(config), FakeTensorMode():
        return [compiled_work(function, weights, args) for function, weights, args, _ in _compiled_parts(config)]


def _compiled_parts(config: Config) -> list[tuple[Callable[..., Any], nn.Module, list[Any], int]]:
    """Functions, with their weights and arguments, and in how many blocks they run.

    The last one that has positions does not move the state, nor do those without.
    """
    model = build(changed(config, "model", nope_every=None), 2)
    block, x, positions = _inputs(config, model)
    encoding = model.encoding
    layers = config.model.num_layers
    position = block.position
    moving = len(positioned_layers(config.model)) - 1
    *_, last = model.blocks
    assert isinstance(last, Block)
    args = [x, torch.empty_like(x).requires_grad_()]
    parts: list[tuple[Callable[..., Any], nn.Module, list[Any], int]] = [
        (block.attention_norm, block.attention_norm, [x], layers),
        (block.feed_forward, block, args, layers if position is None else moving),
    ]
    if position is None:
        return parts
    parts.append((last.feed_forward, last, args, layers - moving))
    if not (position.by_kernel and position.has_kernel(x.device)):
        delta = x.new_empty(*x.shape[:2], config.model.num_kv_heads, encoding.state_width, requires_grad=True)
        attended_positions = None
        if encoding.moves_state:
            attended_positions = x.new_empty(*x.shape[:2], config.model.num_heads, encoding.state_width, requires_grad=True)

        def update(delta: Tensor, attended_positions: Tensor | None, m: Tensor) -> Tensor | None:
            assert position is not None
            return position(positions._replace(delta=delta), attended_positions, m).delta

        parts.append((update, position, [delta, attended_positions, x], moving))
    return parts


def _inputs(config: Config, model: Transformer) -> tuple[Block, Tensor, PositionState]:
    """The first block, content as it gets it, and the initial position state of the same tokens."""
    batch = config.training.micro_batch_size
    length = config.data.sequence_length // config.parallel.sample_replicas
    x = torch.empty(batch, length, config.model.hidden_size, requires_grad=True)
    block = model.blocks[0]
    assert isinstance(block, Block)
    return block, x, PositionState(model.encoding.state(torch.zeros(batch, length, dtype=torch.long)))


@contextmanager
def count() -> Iterator[Work]:
    """The operations inside the block, backward passes included."""
    with fused_on_shapes(), _Operators() as operators:
        yield operators.work


class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.work: Work = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace in ("aten", "megatape") and (found := operation(func, args, kwargs or {}, out)) is not None:
            self.work[found] += 1
        return out


def compiled_work(function: Callable[..., Any], weights: nn.Module, args: list[Any]) -> tuple[Work, Work]:
    """The work of a compiled function in the forward pass and in the backward pass. weights: that it uses."""
    graphs: list[Work] = []

    def compiler(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(fused_work(graph))
        return graph.forward

    torch.compiler.reset()  # it compiles a function for so many shapes
    run_backward(torch.compile(function, backend=aot_backend(compiler), fullgraph=True, dynamic=False)(*args), weights, args)
    forward, backward = graphs
    return forward, backward


def run_backward(outputs: Any, weights: nn.Module, args: list[Any]) -> None:
    """The backward pass of a function that has these outputs."""
    made = [out for out in tensors_of(outputs) if out.grad_fn is not None]
    for leaf in tensors_of([args, *weights.parameters()]):
        leaf.grad = None  # to which another run would add
    torch.autograd.backward(made, [torch.empty_like(out) for out in made])


def fused_work(graph: GraphModule) -> Work:
    """The work of a graph of ATen operators in which everything between matrix products is one kernel."""
    work: Work = Counter()
    stages: dict[Node, int] = {}  # how many matrix products one after the other come before a node
    bases: dict[Node, Node] = {}  # what a view looks at
    computed: set[Node] = set()  # not an input, and not a matrix product's result
    read: defaultdict[int, set[Node]] = defaultdict(set)
    written: set[Node] = set()
    for node in graph.graph.nodes:
        sources = [bases[source] for source in node.all_input_nodes]
        stages[node] = max((stages[source] for source in sources), default=0)
        bases[node] = node
        # reader: stage of the kernel that reads the sources, if it is one
        called = node.op == "call_function"
        reader = None
        if called and (node.target is operator.getitem or is_view(node.target)):
            bases[node] = sources[0]
            continue
        if called and count_flops(node.target) is None:
            computed.add(node)
            reader = stages[node]
        elif called:
            stages[node] += 1
            args, kwargs = (map_arg(given, lambda source: source.meta["val"]) for given in (node.args, node.kwargs))
            found = operation(node.target, args, kwargs, node.meta["val"])
            assert found is not None
            work[found] += 1
        for source in sources:  # a matrix product, and what called the graph, read them too
            if source in computed and stages[source] == reader:
                continue
            if source in computed:
                written.add(source)
            if reader is not None:
                read[reader].add(source)
    for stage in {stages[node] for node in computed}:
        moved = [*read[stage], *(node for node in written if stages[node] == stage)]
        work[Operation("other", 0, touched_bytes(node.meta["val"] for node in moved))] += 1
    return work
