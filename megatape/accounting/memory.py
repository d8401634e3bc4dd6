"""Bytes that one rank needs at the peak of a training step, by part."""

from dataclasses import dataclass
from functools import cache

from torch import nn

from megatape.accounting.activation_memory import largest_temporary, offloaded_bytes, plan_activations
from megatape.accounting.activations import activations
from megatape.accounting.element_sizes import GRADIENT_BYTES, STATE_BYTES, elements
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.matrices import plan_matrices
from megatape.accounting.trace import run_pass, run_weights
from megatape.accounting.zero3 import always_whole, gathered
from megatape.config import ZeroConfig
from megatape.optim.optimizer import is_whole
from megatape.registry import OPTIMIZERS
from megatape.zero.deepspeed_config import Stage3Limits

# Share of the available memory that advised settings leave free, because the estimate has an error.
MARGIN = 0.05


@dataclass(frozen=True)
class Memory:
    """Bytes by part.

    Attributes:
        device: Bytes on the device.
        host: Bytes in host memory, with offloading and for checkpoints in the background.
    """

    device: dict[str, float]
    host: dict[str, float]

    @property
    def device_total(self) -> float:
        """Bytes of all parts on the device."""
        return sum(self.device.values())


@cache
def plan_memory(layout: TrainingLayout, on_gpu: bool) -> Memory:
    """Plan the memory of a rank.

    Args:
        layout: Ranks of the run, and their workload.
        on_gpu: Whether to plan for the attention backend of a GPU.
    """
    workload = layout.workload
    state = plan_state(layout)
    host = dict(state.host)
    if workload.activation_checkpointing == "offload":
        host["activations"] = offloaded_bytes(workload, on_gpu)
    return Memory(state.device | plan_activations(workload, on_gpu), host)


def plan_total(layout: TrainingLayout, on_gpu: bool) -> Memory:
    """Plan the same memory as `plan_memory`, but with activations as a single part, which takes half the time.

    Args:
        layout: Ranks of the run, and their workload.
        on_gpu: Whether to plan for the attention backend of a GPU.
    """
    workload = layout.workload
    state = plan_state(layout)
    host = dict(state.host)
    if workload.activation_checkpointing == "offload":
        host["activations"] = offloaded_bytes(workload, on_gpu)
    peak = activations(workload, on_gpu).total + largest_temporary(workload, on_gpu)
    return Memory(state.device | {"activations": peak}, host)


@cache
def plan_state(layout: TrainingLayout) -> Memory:
    """Plan the memory of a rank without activations: the part needed even with the shortest samples."""
    zero = layout.zero
    limits = layout.stage3_limits
    ranks = layout.replicas
    one = run_weights(layout.workload)
    if zero.stage == 3:
        one = run_pass(layout.workload)
    parameters = list(one.model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    num_trained = elements(trained)
    share = elements(trained, ranks) / ranks  # a rank's part of the trained elements, if ZeRO divides them

    gradients: float = num_trained
    if zero.stage >= 2:
        gradients = share
    state: float = num_trained
    master_weights: float = 0  # Stage 0 updates the weights themselves.
    if zero.stage:
        state = share
        master_weights = state

    weight_bytes = layout.workload.element_bytes
    device = {
        "weights": _weight_elements(parameters, ranks, zero, limits) * weight_bytes,
        "gradients": gradients * GRADIENT_BYTES,
        "master weights": master_weights * STATE_BYTES,
        "moments": _optimizer_state(layout, trained),
    }
    if zero.stage in (1, 2):
        device["flattened gradients"] = share * GRADIENT_BYTES
    if layout.optimizer.ema_decay:
        device["moving average"] = state * STATE_BYTES

    host: dict[str, float] = {}
    if layout.copies_state:
        host["copies for checkpoints"] = state * STATE_BYTES + device["moments"] + device.get("moving average", 0)
    if zero.offload_optimizer:
        if zero.stage == 3:
            # Stage 3 sums gradients in host memory. The others do so on the device.
            host["gradients"] = device.pop("gradients")
        for part in ("master weights", "moments", "moving average"):
            if part in device:
                host[part] = device.pop(part)
        host["flattened gradients"] = device.pop("flattened gradients", share * GRADIENT_BYTES)
    if zero.offload_parameters:
        host["weights"] = device.pop("weights")

    if zero.stage == 3:
        device["gathered weights"] = gathered(one.events, ranks, limits).live * weight_bytes
    if zero.stage:
        # Gradients that wait to be reduced, and their copy in transit.
        device["gradient buckets"] = 2 * min(zero.bucket_size, num_trained) * GRADIENT_BYTES
    return Memory(device, host)


def _weight_elements(parameters: list[nn.Parameter], ranks: int, zero: ZeroConfig, limits: Stage3Limits) -> float:
    """Return the number of weights on a rank between its uses of them.

    Args:
        parameters: Weights of the rank's share of the model.
        ranks: Number of ranks that train the same weights.
        zero: Settings of ZeRO.
        limits: Limits of stage 3.
    """
    if zero.stage < 3:
        return elements(parameters)
    whole = always_whole(parameters, limits)
    padded = elements(parameters, ranks)
    total = elements(whole) + padded / ranks
    if zero.hpz_ranks > 1:
        second_copy = (padded - elements(whole, ranks)) / zero.hpz_ranks
        total += second_copy
    return total


def _optimizer_state(layout: TrainingLayout, trained: list[nn.Parameter]) -> float:
    """Return the bytes of optimizer state on a rank: of its elements, and of whole matrices on the rank that has most.

    Args:
        layout: Ranks of the run, and their optimizer.
        trained: Trained weights of the rank's share of the model.
    """
    entry = OPTIMIZERS[layout.optimizer.kind]
    by_element = [parameter for parameter in trained if not is_whole(parameter, layout.optimizer)]
    num_elements: float = elements(by_element)
    if layout.zero.stage:
        ranks = layout.replicas
        num_elements = elements(by_element, ranks) / ranks
    return STATE_BYTES * len(entry.state) * num_elements + plan_matrices(layout).state
