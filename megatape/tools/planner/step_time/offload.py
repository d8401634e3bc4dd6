"""Bytes and time of offloading optimizer, weights and activations."""

from dataclasses import dataclass
from typing import NamedTuple

from megatape.accounting.element_sizes import STATE_BYTES
from megatape.accounting.gpus import Gpu
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.activation_memory import offloaded_bytes
from megatape.accounting.memory.memory_parts import MemoryPart
from megatape.accounting.memory.state_memory import plan_state
from megatape.accounting.shapes.trace import trace_micro_batch
from megatape.accounting.sharding.gathered_weights import gathered
from megatape.tools.planner.step_time.cases import ByCase, Case
from megatape.tools.planner.step_time.rates import LINK_EFFICIENCY
from megatape.zero.deepspeed_config import Stage3Limits

# Share of the data sheet's rate of host memory: a processor also reads the lines that it overwrites.
HOST_EFFICIENCY = ByCase(0.3, 0.6)

OFFLOAD_ASSUMPTION = (
    f"host memory at {HOST_EFFICIENCY.bad:.0%} to {HOST_EFFICIENCY.good:.0%} of its peak, and all ranks of a node update at "
    "once; stage 3 copies to and from it beside the passes in the good case"
)


class OffloadTime(NamedTuple):
    """Seconds of offloading in an optimizer step.

    Attributes:
        overlapped: Overlapped with computation.
        exposed: While the GPU waits.
    """

    overlapped: float
    exposed: float


@dataclass(frozen=True)
class Offload:
    """Bytes that offloading moves between a GPU and host memory in an optimizer step.

    DeepSpeed works as follows with pinned memory (runtime/zero/stage3.py and stage_1_and_2.py in the pinned version):

    * Stage 3 sums gradients in host memory. It copies each micro-batch's gradients there, and back to continue on the device
      (partition_grads). After the last micro-batch it copies them once more, to the optimizer
      (_offload_grad_partition_at_boundary). All of it overlaps with the backward pass. Stages 1 and 2 sum on the device (in
      bfloat16) and copy once, in the computing stream (copy_grads_in_partition).
    * The GPU waits for clipping, the optimizer (torch's fused AdamW, one pass), and casting and copying updated weights (step).
    * Offloaded weights are copied to the device whenever a rank gathers them, each rank its share (partition_parameters.py).

    Attributes:
        overlapped_bytes: Bytes over the host link, overlapped with computation.
        exposed_bytes: Bytes over the host link while the GPU waits.
        host_bytes: Bytes that the optimizer reads and writes in host memory.
    """

    overlapped_bytes: float = 0.0
    exposed_bytes: float = 0.0
    host_bytes: float = 0.0

    def seconds(self, gpu: Gpu, case: Case) -> OffloadTime:
        """Return the time of moving and updating, on a GPU with its share of the host."""
        link_rate = gpu.host_link * LINK_EFFICIENCY.of(case)
        host_rate = gpu.host_bandwidth * HOST_EFFICIENCY.of(case)
        overlapped = self.overlapped_bytes / link_rate
        exposed = self.exposed_bytes / link_rate + self.host_bytes / host_rate
        return OffloadTime(overlapped, exposed)


NOTHING = Offload()


def plan_offload(layout: TrainingLayout, limits: Stage3Limits | None = None) -> Offload:
    """Count a rank's offloaded bytes, zero without offloading.

    Args:
        layout: Layout of the run.
        limits: Limits of stage 3, by default the run's.
    """
    parts = [_offload_optimizer(layout), _offload_weights(layout, limits or layout.stage3_limits), _offload_activations(layout)]
    return Offload(
        overlapped_bytes=sum(part.overlapped_bytes for part in parts),
        exposed_bytes=sum(part.exposed_bytes for part in parts),
        host_bytes=sum(part.host_bytes for part in parts),
    )


def _offload_optimizer(layout: TrainingLayout) -> Offload:
    """Count the bytes of gradients, and of updating weights in host memory."""
    zero = layout.zero
    memory = plan_state(layout)
    master = memory.total_of(MemoryPart.MASTER_WEIGHTS)
    moments = memory.total_of(MemoryPart.MOMENTS)
    # Gradients are in float32, as the master weights are.
    gradients = master
    updated_weights = master / STATE_BYTES * layout.workload.element_bytes

    # If master weights and weights are in different memories, updated weights cross the link.
    is_split = zero.offload_optimizer != zero.offload_parameters
    exposed = 0.0
    if is_split:
        exposed = updated_weights
    if not zero.offload_optimizer:
        return Offload(exposed_bytes=exposed)

    # Clipping reads and writes gradients. The optimizer reads them, and reads and writes its state.
    clipping = 2 * gradients
    optimizer = gradients + 2 * (master + moments)
    casting = master + updated_weights
    host = clipping + optimizer + casting
    if zero.stage == 3:
        num_copies = 2 * layout.num_micro_batches + 1
        return Offload(overlapped_bytes=num_copies * gradients, exposed_bytes=exposed, host_bytes=host)
    return Offload(exposed_bytes=exposed + gradients, host_bytes=host)


def _offload_weights(layout: TrainingLayout, limits: Stage3Limits) -> Offload:
    """Count the bytes of offloaded weights that a rank copies to the device, its share of those gathered."""
    if not layout.zero.offload_parameters:
        return NOTHING
    workload = layout.workload
    num_replicas = layout.num_replicas
    gathered_elements = gathered(trace_micro_batch(workload).events, num_replicas, limits).elements
    elements_of_rank = layout.num_micro_batches * gathered_elements / num_replicas
    return Offload(overlapped_bytes=elements_of_rank * workload.element_bytes)


def _offload_activations(layout: TrainingLayout) -> Offload:
    """Count the bytes of offloaded activations, to the host and back in the computing stream."""
    workload = layout.workload
    if workload.activation_checkpointing != "offload":
        return NOTHING
    return Offload(exposed_bytes=2 * layout.num_micro_batches * offloaded_bytes(workload, on_gpu=True))
