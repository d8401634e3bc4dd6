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

from torch import nn

from megatape.accounting.shapes.module_events import Event, EventKind
from megatape.utils.values.rounding import round_up
from megatape.zero.deepspeed_config import Stage3Limits


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


def gathered(events: list[Event], num_replicas: int, limits: Stage3Limits) -> Gathered:
    """Simulate the events of one micro-batch, with `stage3_max_reuse_distance` 0.

    Args:
        events: Fetches and releases, in order.
        num_replicas: Ranks sharding the weights.
        limits: Limits on gathered weights.

    Returns:
        Elements gathered in total, and the most gathered at any time.
    """
    simulation = _Simulation(events, num_replicas, limits)
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

    def __init__(self, events: list[Event], num_replicas: int, limits: Stage3Limits) -> None:
        self.num_gathered = 0
        self.max_live = 0
        self._num_replicas = num_replicas
        self._limits = limits
        self._weights = _weights_by_module(events)
        self._sharded: set[nn.Parameter] = set()
        for weights in self._weights.values():
            self._sharded.update(weight for weight in weights if weight.numel() > limits.persistence_threshold)
        # Uses that prefetching has not reached yet.
        self._queue = _queue_of_uses(events, self._weights)
        self._num_fetches = 0
        # For each weight, the last fetch that prefetching has reached.
        self._last_use: dict[nn.Parameter, int] = {}
        self._gathered: set[nn.Parameter] = set()
        # Number of elements in gathered weights.
        self._live = 0

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
        self.num_gathered += round_up(weight.numel(), self._num_replicas)
        self._live += weight.numel()
        self.max_live = max(self.max_live, self._live)
        return True


def _weights_by_module(events: list[Event]) -> dict[nn.Module, list[nn.Parameter]]:
    """Return the weights of each module with events."""
    weights: dict[nn.Module, list[nn.Parameter]] = {}
    for event in events:
        if event.module not in weights:
            weights[event.module] = event.weights
    return weights


def _queue_of_uses(events: list[Event], weights: dict[nn.Module, list[nn.Parameter]]) -> deque[tuple[nn.Parameter, int]]:
    """Return the uses of weights in order: weight, and number of the fetch.

    Args:
        events: Fetches and releases, in order.
        weights: Weights by module.
    """
    queue: deque[tuple[nn.Parameter, int]] = deque()
    fetched_modules = [event.module for event in events if event.kind is EventKind.FETCH]
    for number, module in enumerate(fetched_modules):
        queue.extend((weight, number) for weight in weights[module])
    return queue
