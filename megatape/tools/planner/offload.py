"""Bytes and time of offloading optimizer, weights and activations."""

from dataclasses import dataclass
from typing import NamedTuple

from megatape.accounting.activation_memory import offloaded_bytes
from megatape.accounting.gathered_weights import gathered
from megatape.accounting.gpus import Gpu
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory import plan_state
from megatape.accounting.memory_parts import MemoryPart
from megatape.accounting.trace import trace_micro_batch
from megatape.tools.planner.cases import ByCase, Case
from megatape.tools.planner.rates import LINK_EFFICIENCY
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

    overlapped_bytes: float
    exposed_bytes: float
    host_bytes: float

    def seconds(self, gpu: Gpu, case: Case) -> OffloadTime:
        """Return the time of moving and updating, on a GPU with its share of the host."""
        link_rate = gpu.host_link * LINK_EFFICIENCY.of(case)
        host_rate = gpu.host_bandwidth * HOST_EFFICIENCY.of(case)
        overlapped = self.overlapped_bytes / link_rate
        exposed = self.exposed_bytes / link_rate + self.host_bytes / host_rate
        return OffloadTime(overlapped, exposed)


def plan_offload(layout: TrainingLayout, limits: Stage3Limits | None = None) -> Offload:
    """Count a rank's offloaded bytes, zero without offloading.

    Args:
        layout: Layout of the run.
        limits: Limits of stage 3, by default the run's.
    """
    workload = layout.workload
    zero = layout.zero
    size = workload.element_bytes
    num_micro_batches = layout.num_micro_batches
    memory = plan_state(layout)
    master = memory.total_of(MemoryPart.MASTER_WEIGHTS)
    moments = memory.total_of(MemoryPart.MOMENTS)
    gradients = master  # both float32
    updated_weights = master / 4 * size

    overlapped = 0.0
    exposed = 0.0
    host = 0.0
    if zero.offload_optimizer != zero.offload_parameters:
        # Master weights and weights are in different memories.
        exposed += updated_weights
    if zero.offload_optimizer:
        if zero.stage == 3:
            overlapped += (2 * num_micro_batches + 1) * gradients
        else:
            exposed += gradients
        clipping = 2 * gradients  # reads and writes
        optimizer = gradients + 2 * (master + moments)  # reads gradients, reads and writes its state
        casting = master + updated_weights
        host += clipping + optimizer + casting
    if zero.offload_parameters:
        ranks = layout.num_replicas
        if limits is None:
            limits = layout.stage3_limits
        gathered_elements = gathered(trace_micro_batch(workload).events, ranks, limits).elements
        overlapped += num_micro_batches * gathered_elements / ranks * size
    if workload.activation_checkpointing == "offload":
        # To the host and back, in the computing stream.
        exposed += 2 * num_micro_batches * offloaded_bytes(workload, on_gpu=True)
    return Offload(overlapped, exposed, host)
