"""Memory of one rank at the peak of a training step, by part."""

from functools import cache

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.activation_memory import largest_temporary, offloaded_bytes, plan_activations
from megatape.accounting.memory.memory_parts import Memory, MemoryPart
from megatape.accounting.memory.saved_activations import count_saved_activations
from megatape.accounting.memory.state_memory import plan_state
from megatape.accounting.whole_model.parameters import count_trainable
from megatape.accounting.workload import Workload

# Share of memory that advised settings leave free for the estimate's error.
MARGIN = 0.05


@cache
def plan_memory(layout: TrainingLayout, on_gpu: bool) -> Memory:
    """Plan a rank's memory.

    Args:
        layout: Layout of the run.
        on_gpu: Whether to plan for a GPU's attention backend.
    """
    planned = plan_activations(layout.workload, on_gpu)
    on_device: dict[MemoryPart, float] = {
        MemoryPart.ACTIVATIONS: planned.content,
        MemoryPart.POSITION_ENCODING: planned.positions,
        MemoryPart.LARGEST_TEMPORARY: planned.temporary,
    }
    return _with_activations(layout, on_gpu, on_device)


def plan_total(layout: TrainingLayout, on_gpu: bool) -> Memory:
    """Plan the same memory as `plan_memory` in half the time, with activations as a single part.

    Args:
        layout: Layout of the run.
        on_gpu: Whether to plan for a GPU's attention backend.
    """
    peak = count_saved_activations(layout.workload, on_gpu).total + largest_temporary(layout.workload, on_gpu)
    return _with_activations(layout, on_gpu, {MemoryPart.ACTIVATIONS: peak})


def _with_activations(layout: TrainingLayout, on_gpu: bool, on_device: dict[MemoryPart, float]) -> Memory:
    """Add activations to the training state."""
    state = plan_state(layout)
    host = dict(state.host)
    if on_gpu and layout.records_passes:
        on_device[MemoryPart.CUDA_GRAPHS] = _recorded_gradients(layout.workload) + largest_temporary(layout.workload, on_gpu)
    if layout.workload.activation_checkpointing == "offload":
        host[MemoryPart.ACTIVATIONS] = offloaded_bytes(layout.workload, on_gpu)
    return Memory({**state.device, **on_device}, host)


def _recorded_gradients(workload: Workload) -> int:
    """Return the bytes of all gradients of a micro-batch, which recorded passes write to the same memory each time."""
    num_trained = count_trainable(workload.model, workload.trainable, workload.frozen)
    return num_trained * workload.element_bytes
