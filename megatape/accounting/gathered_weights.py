"""Simulates which weights ZeRO stage 3 gathers, prefetches and releases in a micro-batch.

DeepSpeed hooks every module. Before a module's forward or backward pass it gathers the missing weights, then prefetches the
next modules' weights, up to a bucket of elements. Afterwards it releases the module's weights, unless prefetching has already
counted on them. So the last weights stay between forward and backward pass, and the bytes depend on the order of modules. The
rules are from runtime/zero/partitioned_param_coordinator.py in the pinned version. tests/accounting compares the result with a
real run.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from torch import Tensor, nn

from megatape.utils.torch_internals import tree_map_only
from megatape.zero.deepspeed_config import Stage3Limits


class EventKind(Enum):
    """Kinds of events: a module is about to use its weights, or has used them."""

    FETCH = auto()
    RELEASE = auto()


@dataclass(frozen=True)
class Event:
    """A module starts or stops using its weights."""

    kind: EventKind
    module: nn.Module


@dataclass(frozen=True)
class Gathered:
    """Gathered elements of one micro-batch. Weights that are never sharded do not count.

    Attributes:
        elements: Gathered elements in total, with padding.
        live: Maximum elements gathered at any time.
    """

    elements: int
    live: int


def always_whole(parameters: Iterable[nn.Parameter], limits: Stage3Limits) -> list[nn.Parameter]:
    """Return the parameters that stage 3 keeps gathered on every rank: up to DeepSpeed's persistence threshold."""
    return [parameter for parameter in parameters if parameter.numel() <= limits.persistence_threshold]


def record_events(model: nn.Module) -> list[Event]:
    """Hook every module like DeepSpeed. The returned list fills while the model runs forward and backward."""
    events: list[Event] = []
    for module in model.modules():
        _ModuleHooks(module, events)
    return events


class _ModuleHooks:
    """Hooks that append one module's events to a list."""

    def __init__(self, module: nn.Module, events: list[Event]) -> None:
        self._module = module
        self._events = events
        self._num_pending = 0  # inputs still waiting for their gradient
        module.register_forward_pre_hook(self._begin_forward)
        module.register_forward_hook(self._end_forward)

    def _begin_forward(self, module: nn.Module, inputs: Any) -> Any:
        self._record(EventKind.FETCH)
        self._num_pending = 0
        return tree_map_only(Tensor, self._watch_input, inputs)

    def _end_forward(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        self._record(EventKind.RELEASE)
        return tree_map_only(Tensor, self._watch_output, output)

    def _watch_input(self, value: Tensor) -> Tensor:
        value = value.view_as(value)  # a separate tensor, because other modules may have the same input
        if value.requires_grad:
            self._num_pending += 1
            value.register_hook(self._end_backward)
        return value

    def _watch_output(self, value: Tensor) -> Tensor:
        value = value.view_as(value)
        if value.requires_grad:
            value.register_hook(self._begin_backward)
        return value

    def _begin_backward(self, grad: Tensor) -> None:
        self._record(EventKind.FETCH)

    def _end_backward(self, grad: Tensor) -> None:
        self._num_pending -= 1
        is_last_gradient = self._num_pending == 0
        if is_last_gradient:
            self._record(EventKind.RELEASE)

    def _record(self, kind: EventKind) -> None:
        self._events.append(Event(kind, self._module))


def gathered(events: list[Event], data_ranks: int, limits: Stage3Limits) -> Gathered:
    """Simulate the events of one micro-batch, with `stage3_max_reuse_distance` 0.

    Args:
        events: Fetches and releases, in order.
        data_ranks: Ranks sharding the weights.
        limits: Limits on gathered weights.
    """
    simulation = _Simulation(events, data_ranks, limits)
    for event in events:
        if event.kind is EventKind.FETCH:
            simulation.fetch(event.module)
        else:
            simulation.release(event.module)
    return Gathered(simulation.num_gathered, simulation.max_live)


class _Simulation:
    """Weights that one rank gathers and releases.

    Attributes:
        num_gathered: Elements gathered so far, with padding.
        max_live: Maximum elements gathered at any time.
    """

    def __init__(self, events: list[Event], data_ranks: int, limits: Stage3Limits) -> None:
        self.num_gathered = 0
        self.max_live = 0
        self._data_ranks = data_ranks
        self._limits = limits
        self._weights: dict[nn.Module, list[nn.Parameter]] = {}
        self._sharded: set[nn.Parameter] = set()
        for event in events:
            if event.module not in self._weights:
                weights = list(event.module.parameters(recurse=False))
                self._weights[event.module] = weights
                self._sharded.update(weight for weight in weights if weight.numel() > limits.persistence_threshold)

        # Uses that prefetching has not reached yet: (weight, number of the fetch).
        self._queue: deque[tuple[nn.Parameter, int]] = deque()
        fetched_modules = [event.module for event in events if event.kind is EventKind.FETCH]
        for number, module in enumerate(fetched_modules):
            self._queue.extend((weight, number) for weight in self._weights[module])

        self._num_fetches = 0
        self._last_use: dict[nn.Parameter, int] = {}  # last fetch that prefetching has reached
        self._gathered: set[nn.Parameter] = set()
        self._live = 0  # elements of gathered weights

    def fetch(self, module: nn.Module) -> None:
        """Gather the weights of a module about to run, and prefetch for the next modules."""
        weights = self._weights[module]
        for weight in weights:
            self._gather(weight)
        self._skip_uses_of(weights)

        num_prefetched = 0
        limit = min(self._limits.max_live_parameters - self._live, self._limits.prefetch)
        while self._queue and num_prefetched < limit:
            weight, use = self._queue.popleft()
            self._last_use[weight] = max(self._last_use.get(weight, -1), use)
            if self._gather(weight):
                num_prefetched += weight.numel()
        self._num_fetches += 1

    def release(self, module: nn.Module) -> None:
        """Release the weights of a module that has run, unless prefetching counts on them."""
        for weight in self._weights[module]:
            is_needed_later = self._last_use.get(weight, -1) > self._num_fetches
            if weight in self._gathered and not is_needed_later:
                self._gathered.discard(weight)
                self._live -= weight.numel()

    def _skip_uses_of(self, weights: list[nn.Parameter]) -> None:
        """Remove the present use of weights from the queue, and the uses before it."""
        expected = {weight for weight in weights if self._last_use.get(weight, -1) < self._num_fetches}
        while self._queue and expected:
            weight, use = self._queue.popleft()
            self._last_use[weight] = use
            expected.discard(weight)

    def _gather(self, weight: nn.Parameter) -> bool:
        """Gather a weight. Return whether it was missing."""
        if weight not in self._sharded or weight in self._gathered:
            return False
        self._gathered.add(weight)
        self.num_gathered += -(-weight.numel() // self._data_ranks) * self._data_ranks
        self._live += weight.numel()
        self.max_live = max(self.max_live, self._live)
        return True
