"""Events of the modules in a micro-batch: each is about to use its weights, or has used them.

DeepSpeed hooks every module at these moments to gather and release weights at ZeRO stage 3 (gathered_weights.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from torch import Tensor, nn

from megatape.utils.pytorch.torch_internals import tree_map_only


class EventKind(Enum):
    """Kinds of events: a module is about to use its weights, or has used them."""

    FETCH = auto()
    RELEASE = auto()


@dataclass(frozen=True)
class Event:
    """A module starts or stops using its weights.

    Attributes:
        kind: Kind of the event.
        module: The module.
        is_unit: Whether the event is also that of all modules inside it.
    """

    kind: EventKind
    module: nn.Module
    is_unit: bool = False

    @property
    def weights(self) -> list[nn.Parameter]:
        """Weights that the event concerns."""
        return list(self.module.parameters(recurse=self.is_unit))


def record_events(model: nn.Module, units: Iterable[nn.Module] = ()) -> list[Event]:
    """Hook every module like DeepSpeed. The returned list fills while the model runs forward and backward.

    Args:
        model: The model.
        units: Modules whose weights are gathered together, so that the modules inside have no hooks.
    """
    units = set(units)
    inside: set[nn.Module] = set()
    for unit in units:
        inside.update(module for module in unit.modules() if module is not unit)
    events: list[Event] = []
    for module in model.modules():
        if module not in inside:
            _ModuleHooks(module, module in units, events)
    return events


class _ModuleHooks:
    """Hooks that append one module's events to a list."""

    def __init__(self, module: nn.Module, is_unit: bool, events: list[Event]) -> None:
        self._module = module
        self._is_unit = is_unit
        self._events = events
        # Number of inputs that are still waiting for their gradient.
        self._num_pending = 0
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
        # Hook a separate tensor, because other modules may have the same input.
        value = value.view_as(value)
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
        self._events.append(Event(kind, self._module, self._is_unit))
