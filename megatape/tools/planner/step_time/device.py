"""Time of a training step on one GPU, without exchanges."""

from collections import Counter

from megatape.accounting.gpus import Gpu
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.memory_parts import Memory, MemoryPart
from megatape.accounting.memory.state_memory import plan_state
from megatape.accounting.shapes.extrapolation import scaled
from megatape.accounting.sharding.whole_matrices import plan_matrices
from megatape.tools.planner.kernels.operations import KernelKind, Operation, Work
from megatape.tools.planner.kernels.step_work import step_work
from megatape.tools.planner.step_time.cases import ByCase
from megatape.tools.planner.step_time.efficiency import DeviceTime, device_times


def device_seconds(layout: TrainingLayout, gpu: Gpu) -> ByCase[DeviceTime]:
    """Return the time of a step on a GPU, without exchanges between GPUs."""
    work = scaled(step_work(layout.workload), layout.num_micro_batches)
    work.update(optimizer_work(plan_state(layout)))
    matrix_updates = Operation(KernelKind.PRODUCT, plan_matrices(layout).flops, 0)
    work[matrix_updates] += 1
    return device_times(work, gpu)


def optimizer_work(memory: Memory) -> Work:
    """Return the optimizer's work: reading its state and the gradients, and writing its state."""
    state_bytes = memory.device.get(MemoryPart.MASTER_WEIGHTS, 0.0) + memory.device.get(MemoryPart.MOMENTS, 0.0)
    gradient_bytes = memory.device.get(MemoryPart.GRADIENTS, 0.0)
    return Counter({Operation(KernelKind.FUSED, 0, 2 * state_bytes + gradient_bytes): 1})
