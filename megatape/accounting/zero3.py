"""What ZeRO stage 3 gathers in a micro-batch: a simulation of how DeepSpeed gathers, prefetches and releases weights.

DeepSpeed hooks every module. Before a module's forward or backward pass it gathers the weights that are missing, then
prefetches those of the next modules, up to a bucket of elements. After the pass it releases the module's weights,
unless the prefetch counts on finding them. So the last weights stay between forward and backward pass, and the number
of bytes depends on the order of the modules. The rules are those of runtime/zero/partitioned_param_coordinator.py in
the pinned version; tests/plan compares the result with the bytes counted in a real run.
"""

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from megatape.utils.torch_internals import tree_map_only
from megatape.zero.deepspeed_config import Stage3Limits


@dataclass(frozen=True)
class Event:
    """A module is about to use its weights (fetch), or has used them (release)."""

    kind: Literal["fetch", "release"]
    module: nn.Module


@dataclass(frozen=True)
class Gathered:
    """Elements gathered in one micro-batch, and the most that are gathered at any time.

    Weights that are always whole do not count.
    """

    elements: int
    live: int


def record_events(model: nn.Module) -> list[Event]:
    """Hook every module, as DeepSpeed does. The returned list fills while the model runs forward and backward."""
    events: list[Event] = []
    for module in model.modules():
        _hook(module, events)
    return events


def _hook(module: nn.Module, events: list[Event]) -> None:
    waiting = 0  # inputs that still wait for their gradient

    def before(_: nn.Module, inputs: Any) -> Any:
        nonlocal waiting
        events.append(Event("fetch", module))
        waiting = 0
        return tree_map_only(Tensor, watch_input, inputs)

    def after(_: nn.Module, inputs: Any, output: Any) -> Any:
        events.append(Event("release", module))
        return tree_map_only(Tensor, watch_output, output)

    def watch_input(value: Tensor) -> Tensor:
        nonlocal waiting
        value = value.view_as(value)  # a tensor of its own: other modules may have the same input
        if value.requires_grad:
            waiting += 1
            value.register_hook(end_backward)
        return value

    def watch_output(value: Tensor) -> Tensor:
        value = value.view_as(value)
        if value.requires_grad:
            value.register_hook(begin_backward)
        return value

    def begin_backward(grad: Tensor) -> None:
        events.append(Event("fetch", module))

    def end_backward(grad: Tensor) -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:  # the last gradient leaves
            events.append(Event("release", module))

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after)


def gathered(events: list[Event], data_ranks: int, limits: Stage3Limits) -> Gathered:
    """Simulate the events of one micro-batch. No weight is kept for reuse (`stage3_max_reuse_distance` is 0)."""
    weights = {event.module: list(event.module.parameters(recurse=False)) for event in events}
    divided = {parameter for own in weights.values() for parameter in own if parameter.numel() > limits.persistence_threshold}
    fetches = [event.module for event in events if event.kind == "fetch"]
    queue = deque((parameter, step) for step, module in enumerate(fetches) for parameter in weights[module])
    needed_at: dict[nn.Parameter, int] = defaultdict(lambda: -1)  # the last use that prefetching has seen
    whole: set[nn.Parameter] = set()
    step = moved = live = most = 0

    def gather(parameters: list[nn.Parameter]) -> None:
        nonlocal moved, live, most
        for parameter in parameters:
            whole.add(parameter)
            moved += -(-parameter.numel() // data_ranks) * data_ranks
            live += parameter.numel()
        most = max(most, live)

    for event in events:
        own = weights[event.module]
        if event.kind == "fetch":
            gather([parameter for parameter in own if parameter in divided - whole])
            expected = {parameter for parameter in own if needed_at[parameter] < step}
            while queue and expected:
                parameter, use = queue.popleft()
                needed_at[parameter] = use
                expected.discard(parameter)
            coming = 0
            limit = min(limits.max_live_parameters - live, limits.prefetch)
            while queue and coming < limit:
                parameter, use = queue.popleft()
                needed_at[parameter] = max(needed_at[parameter], use)
                if parameter in divided - whole:
                    gather([parameter])
                    coming += parameter.numel()
            step += 1
        else:
            for parameter in own:
                if parameter in whole and needed_at[parameter] <= step:
                    whole.discard(parameter)
                    live -= parameter.numel()
    return Gathered(moved, most)
