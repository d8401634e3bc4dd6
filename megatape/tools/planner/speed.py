"""The time of an optimizer step on a cluster: a range computed from FLOPs and bytes, with its assumptions stated."""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from megatape.accounting.counts import count_parameters, forward_flops
from megatape.accounting.gpus import Gpu, named
from megatape.accounting.matrices import plan_matrices
from megatape.accounting.memory import Memory, offloaded_bytes, plan_state
from megatape.accounting.trace import run_pass, scaled
from megatape.accounting.traffic import element_bytes, leaving_node, plan_traffic
from megatape.accounting.zero3 import gathered
from megatape.config import ClusterConfig, Config, parse_config
from megatape.errors import MissingPath, UserError
from megatape.tools.planner.host import HOOK_SECONDS, LAUNCH_SECONDS, host_work
from megatape.tools.planner.operations import LINK_EFFICIENCY, DeviceTime, Operation, Work, device_times, middle
from megatape.tools.planner.work import step_work
from megatape.utils.files import read_lines
from megatape.zero.deepspeed_config import stage3_limits

# Slowdown of GPUs that train together against one GPU with the same work, (bad, good), fitted to the published runs in
# docs/planning.md. After minutes of training, GPUs lower their clocks to stay within their power limit, and exchanges occupy
# some of their multiprocessors.
SUSTAINED_SLOWDOWN = (1.25, 1.08)
A100_SUSTAINED_SLOWDOWN = (1.0, 1.0)

# If two estimates differ by less than this share, they do not tell which step is faster: similar published runs scatter as much
# around the estimate.
TOLERANCE = 0.10

# Share of the data sheet's rate of host memory, (bad, good): a processor also reads the lines that it overwrites.
HOST_EFFICIENCY = (0.3, 0.6)

# Assumptions about whole runs, in addition to those about operations.
RUN_ASSUMPTIONS = (
    f"GPUs training together take {SUSTAINED_SLOWDOWN[1]} to {SUSTAINED_SLOWDOWN[0]} times as long as one alone, except A100s",
    f"{LAUNCH_SECONDS[1] * 1e6:.0f} to {LAUNCH_SECONDS[0] * 1e6:.0f} microseconds to launch a kernel, while the GPU computes",
    f"{HOOK_SECONDS[1] * 1e6:.0f} to {HOOK_SECONDS[0] * 1e6:.0f} microseconds to run a hook of stage 3, while the GPU computes",
)

OFFLOAD_ASSUMPTION = (
    f"host memory at {HOST_EFFICIENCY[0]:.0%} to {HOST_EFFICIENCY[1]:.0%} of its peak, and all ranks of a node update at once; "
    "stage 3 copies to and from it beside the passes in the good case"
)


@dataclass(frozen=True)
class Offload:
    """Bytes that ZeRO-Offload moves between a GPU and host memory in an optimizer step.

    As DeepSpeed does it, with pinned memory (runtime/zero/stage3.py and stage_1_and_2.py of the pinned version):

    * Stage 3 keeps the sum of the gradients in host memory. Of each micro-batch it copies them there, and back to continue on
      the device (partition_grads); after the last, once more to the optimizer (_offload_grad_partition_at_boundary). All of it
      runs beside the backward pass. Stages 1 and 2 sum on the device (in bfloat16) and copy once, in the stream that computes
      (copy_grads_in_partition).
    * The GPU waits for clipping, the optimizer (torch's fused AdamW, one pass) and the cast and copy of updated weights (step).
    * Offloaded weights are copied to the device whenever a rank gathers them, each rank its share (partition_parameters.py).

    Attributes:
        beside: over the link to the host while the GPU computes.
        after: over it while the GPU waits.
        processor: that the optimizer reads and writes in host memory.
    """

    beside: float
    after: float
    processor: float

    def seconds(self, gpu: Gpu, case: int) -> tuple[float, float]:
        """The time beside the passes, and the time that the GPU waits. case: as in operations.py."""
        link = gpu.host_link * LINK_EFFICIENCY[case]
        return self.beside / link, self.after / link + self.processor / (gpu.host_bandwidth * HOST_EFFICIENCY[case])


def plan_offload(config: Config, world_size: int) -> Offload:
    """The bytes of a rank; none where nothing is offloaded."""
    zero = config.zero
    size = element_bytes(config)
    micro_batches = config.accumulation(world_size)
    memory = plan_state(config, world_size)
    held = memory.device | memory.host
    gradients = master = held["master weights"]
    updated = master / 4 * size
    beside = processor = 0.0
    after = updated if zero.offload_optimizer != zero.offload_parameters else 0.0  # from master weights in the other memory
    if zero.offload_optimizer:
        if zero.stage == 3:
            beside += (2 * micro_batches + 1) * gradients
        else:
            after += gradients
        # Clipping reads and writes the gradients; the optimizer reads them, reads and writes its state; the cast follows.
        processor += 3 * gradients + 2 * (master + held["moments"]) + master + updated
    if zero.offload_parameters:
        ranks = config.replicas(world_size)
        beside += micro_batches * gathered(run_pass(config).events, ranks, stage3_limits(config)).elements / ranks * size
    if config.training.activation_checkpointing == "offload":  # to the host and back, in the stream that computes
        after += 2 * micro_batches * offloaded_bytes(config, on_gpu=True)
    return Offload(beside, after, processor)


@dataclass(frozen=True)
class Speed:
    """Seconds and model FLOPs utilization of one optimizer step, (low, high) each, and its FLOPs over all ranks.

    model_flops: three times the forward pass. done_flops: the same with what activation checkpointing recomputes.
    """

    seconds: tuple[float, float]
    utilization: tuple[float, float]
    model_flops: int
    done_flops: int


def plan_speed(config: Config, cluster: ClusterConfig, gpu: Gpu, correction: float | None = None) -> Speed:
    """Estimate the speed of an optimizer step.

    Args:
        config: Configuration of the run.
        cluster: Machines of the run.
        gpu: Their GPU.
        correction: Measured seconds of a step on one GPU divided by `middle`. The remaining range comes from exchanges between
            GPUs, and from the clocks of GPUs that train together.

    Returns:
        Ranges of seconds and utilization, and FLOPs.
    """
    world_size = cluster.world_size
    training = config.training
    forward = forward_flops(config.model, config.data.sequence_length, training.num_shifted_groups) * training.global_batch_size
    model_flops = 3 * forward
    head = 2 * config.model.hidden_size * config.model.vocab_size * config.step_tokens  # the output matrix is not recomputed
    done_flops = model_flops + training.recomputes_blocks * (forward - head)
    step = _Step(config, cluster, gpu, correction)
    low = step.good_seconds()
    high = step.bad_seconds()
    worst, best = (model_flops / world_size / gpu.bfloat16_flops / time for time in (high, low))
    return Speed((low, high), (worst, best), model_flops, done_flops)


class _Step:
    """Parts of an optimizer step and their overlap.

    Args:
        config: Configuration of the run.
        cluster: Machines of the run.
        gpu: Their GPU.
        correction: See `plan_speed`.
    """

    def __init__(self, config: Config, cluster: ClusterConfig, gpu: Gpu, correction: float | None) -> None:
        self._gpu = gpu
        self._links = links(config, cluster)
        self._overlapped = plan_traffic(config, cluster.world_size).overlapped
        self._offload = plan_offload(config, cluster.world_size)
        self._host = host_work(config, cluster.world_size)
        self._times = device_seconds(config, cluster.world_size, gpu)
        if correction is not None:
            corrected = DeviceTime(*(correction * part for part in middle(self._times)))
            self._times = (corrected, corrected)
        self._is_measured = correction is not None
        self._slowdown = (1.0, 1.0)
        if cluster.world_size > 1:
            self._slowdown = A100_SUSTAINED_SLOWDOWN if gpu.name == "A100" else SUSTAINED_SLOWDOWN

    def bad_seconds(self) -> float:
        """Return the time of a step in which only launches overlap."""
        case = 0
        exchanges = sum(self._exchange_seconds(case).values())
        beside, after = self._offload.seconds(self._gpu, case)
        computing = self._slowdown[case] * sum(self._times[case])
        return self._with_host(computing + exchanges + beside + after, case)

    def good_seconds(self) -> float:
        """Return the time of a step with all possible overlap."""
        case = 1
        compute_bound, memory_bound = (self._slowdown[case] * part for part in self._times[case])
        exchanges = self._exchange_seconds(case)
        beside, after = self._offload.seconds(self._gpu, case)
        hidden = sum(self._overlapped[axis] * exchanges[axis] for axis in ("tensor", "context"))
        exposed = exchanges["tensor"] + exchanges["context"] - hidden + exchanges["sequence"]
        hidden += exchanges["data"] + exchanges["hpz"]
        on_device = exposed + memory_bound + max(compute_bound, hidden, beside) + exchanges["all"] + after
        return self._with_host(on_device, case)

    def _exchange_seconds(self, case: int) -> dict[str, float]:
        """Return the time of the exchanges between GPUs, by group of ranks."""
        seconds = {}
        for group, (inside, outside) in self._links.items():
            at_peak = inside / self._gpu.node_bandwidth + outside / self._gpu.network_bandwidth
            seconds[group] = at_peak / LINK_EFFICIENCY[case]
        return seconds

    def _with_host(self, on_device: float, case: int) -> float:
        """Return the time of a step on the device and the host. A measured step already includes the host's part."""
        if self._is_measured:
            return on_device
        launching, update = self._host.seconds(case)
        return max(on_device, launching) + update


def device_seconds(config: Config, world_size: int, gpu: Gpu) -> tuple[DeviceTime, DeviceTime]:
    """A step without exchanges between GPUs, (bad, good)."""
    work = scaled(step_work(config), config.accumulation(world_size))
    work.update(optimizer_work(plan_state(config, world_size)))
    work[Operation("product", plan_matrices(config, world_size).flops, 0)] += 1
    return device_times(work, gpu)


def optimizer_work(memory: Memory) -> Work:
    """The optimizer reads its state and the gradients, and writes its state."""
    state = sum(memory.device.get(part, 0.0) for part in ("master weights", "moments"))
    return Counter({Operation("other", 0, 2 * state + memory.device.get("gradients", 0.0)): 1})


def links(config: Config, cluster: ClusterConfig) -> dict[str, tuple[float, float]]:
    """Bytes that a rank sends in a step, by group: (inside its node, to other nodes)."""
    sent = plan_traffic(config, cluster.world_size).sent
    tensor_size = config.parallel.tp
    node = cluster.gpus_per_node
    replicas = max(1, node // tensor_size)  # ranks of a node with the same share of the model
    context = config.parallel.cp
    in_node = max(1, replicas // config.parallel.sp)
    result = {}
    for group, size, per_node in (
        ("tensor", tensor_size, min(tensor_size, node)),
        ("sequence", config.parallel.sp, min(config.parallel.sp, replicas)),
        ("context", context, min(context, in_node)),
        ("data", config.replicas(cluster.world_size), replicas),
        ("hpz", config.zero.hpz_ranks, min(config.zero.hpz_ranks, node)),
        ("all", cluster.world_size, node),
    ):
        outside = leaving_node(sent[group], size, per_node)
        result[group] = (sent[group].total() - outside, outside)
    return result


@dataclass(frozen=True)
class MeasuredStep:
    """A training step on one GPU. seconds, estimated: measured, and in the middle of the plan's range."""

    config: Config
    gpu: Gpu
    seconds: float
    estimated: float

    @property
    def correction(self) -> float:
        """Ratio of the measured time to the estimate."""
        return self.seconds / self.estimated


def nearest_step(results: Path, config: Config) -> MeasuredStep:
    """The fastest of the measured steps whose size is nearest to that of a run.

    Only steps of a results.jsonl with the run's encoding and training.fp8 count.

    Raises FileNotFoundError, or UserError if there are none, or if the rates of the GPU are not known.
    """
    if not results.is_file():
        raise MissingPath(f"no measurements at {results}: give the results.jsonl of megatape benchmark gpu")
    entries = {str(entry.get("key")): entry for _, entry in read_lines(results)}
    device = entries.get("machine/device", {}).get("name")
    if device is None:
        raise UserError(f"{results} names no device: give the results.jsonl of megatape benchmark gpu")
    gpu = named(str(device))
    if gpu is None:
        raise UserError(f"{results} was measured on {device}, whose rates are not known: add it to megatape/accounting/gpus.py")
    own = math.log(count_parameters(config.model).total)
    ranked = [
        (abs(math.log(count_parameters(step.model).total) - own), float(entry["seconds"]), step)
        for key, entry in entries.items()
        if key.startswith(("step ", "fp8/")) and "config" in entry
        for step in [parse_config(entry["config"], str(results))]
        if (step.model.encoding, step.training.fp8) == (config.model.encoding, config.training.fp8)
    ]
    if not ranked:
        raise UserError(
            f"{results} holds no training step with encoding {config.model.encoding} and training.fp8 {config.training.fp8}: "
            "measure some"
        )
    _, seconds, step = min(ranked, key=lambda entry: entry[:2])
    return MeasuredStep(step, gpu, seconds, sum(middle(device_seconds(step, 1, gpu))))
