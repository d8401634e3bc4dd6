"""Memory of one rank's training state: weights, gradients, optimizer state and their copies."""

from functools import cache

from torch import nn

from megatape.accounting.element_sizes import GRADIENT_BYTES, STATE_BYTES, elements
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.memory_parts import Memory, MemoryPart
from megatape.accounting.shapes.trace import trace_micro_batch, trace_parameters
from megatape.accounting.sharding.gathered_weights import always_whole, gathered
from megatape.accounting.sharding.whole_matrices import plan_matrices
from megatape.config import ZeroConfig
from megatape.optim.optimizer import is_whole
from megatape.registry import OPTIMIZERS
from megatape.zero.deepspeed_config import Stage3Limits


@cache
def plan_state(layout: TrainingLayout) -> Memory:
    """Return a rank's memory without activations: the part needed even for the shortest samples."""
    offloaded = _offloaded_parts(layout.zero)
    device: dict[MemoryPart, float] = {}
    host: dict[MemoryPart, float] = {}
    for part, size in _state_bytes(layout).items():
        if part in offloaded:
            host[part] = size
        else:
            device[part] = size
    return Memory(device, host)


def _offloaded_parts(zero: ZeroConfig) -> set[MemoryPart]:
    """Return the parts that live in host memory, if a run has them."""
    parts = {MemoryPart.CHECKPOINT_COPIES}
    if zero.offload_optimizer:
        parts |= {
            MemoryPart.MASTER_WEIGHTS,
            MemoryPart.MOMENTS,
            MemoryPart.MOVING_AVERAGE,
            MemoryPart.FLATTENED_GRADIENTS,
        }
        if zero.stage == 3:
            # Stage 3 sums gradients in host memory. The others do so on the device.
            parts.add(MemoryPart.GRADIENTS)
    if zero.offload_parameters:
        parts.add(MemoryPart.WEIGHTS)
    return parts


def _state_bytes(layout: TrainingLayout) -> dict[MemoryPart, float]:
    """Return the bytes of a rank's weights, gradients, optimizer state and their copies, on either device."""
    zero = layout.zero
    state = _State(layout)
    parts: dict[MemoryPart, float] = {
        MemoryPart.WEIGHTS: state.weights(),
        MemoryPart.GRADIENTS: state.gradients(),
        MemoryPart.MASTER_WEIGHTS: state.master_weights(),
        MemoryPart.MOMENTS: state.moments(),
    }
    if zero.stage in (1, 2) or zero.offload_optimizer:
        parts[MemoryPart.FLATTENED_GRADIENTS] = state.flattened_gradients()
    if layout.optimizer.ema_decay:
        parts[MemoryPart.MOVING_AVERAGE] = state.moving_average()
    if zero.stage == 3:
        parts[MemoryPart.GATHERED_WEIGHTS] = state.gathered_weights()
    if zero.stage:
        parts[MemoryPart.GRADIENT_BUCKETS] = state.gradient_buckets()
    if layout.copies_state:
        parts[MemoryPart.CHECKPOINT_COPIES] = state.checkpoint_copies()
    return parts


class _State:
    """Bytes of a rank's training state, one method per part.

    With P_t trained elements and N replicas, ZeRO leaves a rank P_t / N of the optimizer state from stage 1 on, of the
    gradients from stage 2 on, and of the weights at stage 3 (arXiv 1910.02054, section 5). Gradients, master weights and the
    moving average have 4 bytes per element, AdamW's moments 8.
    """

    def __init__(self, layout: TrainingLayout) -> None:
        self._layout = layout
        self._stage = layout.zero.stage
        self._num_replicas = layout.num_replicas
        model = trace_parameters(layout.workload).model
        self._parameters = list(model.parameters())
        self._trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        self._num_trained = elements(self._trained)
        self._num_sharded = elements(self._trained, self._num_replicas) / self._num_replicas
        # Elements that this rank updates.
        self._num_updated: float = self._num_sharded if self._stage else self._num_trained

    def weights(self) -> float:
        """Return the bytes of weights that stay on the rank between uses."""
        num_weights = _weight_elements(self._parameters, self._num_replicas, self._layout.zero, self._layout.stage3_limits)
        return num_weights * self._layout.workload.element_bytes

    def gradients(self) -> float:
        """Return the bytes of summed gradients."""
        if self._stage >= 2:
            num_gradients = self._num_sharded
        else:
            num_gradients = self._num_trained
        return num_gradients * GRADIENT_BYTES

    def master_weights(self) -> float:
        """Return the bytes of master weights: 0 at stage 0, which updates the weights themselves."""
        return self._num_updated * STATE_BYTES if self._stage else 0

    def moments(self) -> float:
        """Return the bytes of the optimizer's state."""
        return _optimizer_state(self._layout, self._trained)

    def flattened_gradients(self) -> float:
        """Return the bytes of the gradients' copy for DeepSpeed's optimizer."""
        return self._num_sharded * GRADIENT_BYTES

    def moving_average(self) -> float:
        """Return the bytes of the moving average."""
        return self._num_updated * STATE_BYTES

    def gathered_weights(self) -> float:
        """Return the bytes of weights that stage 3 holds gathered at once."""
        events = trace_micro_batch(self._layout.workload).events
        live = gathered(events, self._num_replicas, self._layout.stage3_limits).live
        return live * self._layout.workload.element_bytes

    def gradient_buckets(self) -> float:
        """Return the bytes of a full bucket and its copy in transit."""
        return 2 * min(self._layout.zero.bucket_size, self._num_trained) * GRADIENT_BYTES

    def checkpoint_copies(self) -> float:
        """Return the bytes of the state's copy in the background: weights in float32, moments and moving average."""
        copied = self._num_updated * STATE_BYTES + self.moments()
        if self._layout.optimizer.ema_decay:
            copied += self.moving_average()
        return copied


def _weight_elements(parameters: list[nn.Parameter], num_replicas: int, zero: ZeroConfig, limits: Stage3Limits) -> float:
    """Return the number of weights that stay on a rank between uses."""
    if zero.stage < 3:
        return elements(parameters)
    whole = always_whole(parameters, limits)
    padded = elements(parameters, num_replicas)
    total = elements(whole) + padded / num_replicas
    if zero.hpz_ranks > 1:
        second_copy = (padded - elements(whole, num_replicas)) / zero.hpz_ranks
        total += second_copy
    return total


def _optimizer_state(layout: TrainingLayout, trained: list[nn.Parameter]) -> float:
    """Return a rank's bytes of optimizer state, including the whole matrices of the rank that has most."""
    entry = OPTIMIZERS[layout.optimizer.kind]
    by_element = [parameter for parameter in trained if not is_whole(parameter, layout.optimizer)]
    num_elements: float = elements(by_element)
    if layout.zero.stage:
        num_elements = elements(by_element, layout.num_replicas) / layout.num_replicas
    return STATE_BYTES * len(entry.state) * num_elements + plan_matrices(layout).state
