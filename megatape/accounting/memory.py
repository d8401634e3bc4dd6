"""Bytes that one rank needs at the peak of a training step, by part."""

from dataclasses import dataclass
from functools import cache
from math import prod

from torch import nn

from megatape.accounting.activation_memory import largest_temporary, offloaded_bytes, plan_activations
from megatape.accounting.activations import activations
from megatape.accounting.matrices import plan_matrices
from megatape.accounting.parameters import count_parameters, meta_model
from megatape.accounting.trace import run_pass, run_weights
from megatape.accounting.traffic import GRADIENT_BYTES, always_whole, element_bytes, elements
from megatape.accounting.zero3 import gathered
from megatape.config import Config, OptimizerConfig, ZeroConfig
from megatape.model.trainable import freeze
from megatape.nn.parameters import spec_of
from megatape.optim.optimizer import is_whole
from megatape.registry import OPTIMIZERS
from megatape.zero.deepspeed_config import Stage3Limits, stage3_limits

# Bytes of an element of master weights, moments and the moving average.
FLOAT32_BYTES = 4

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
def plan_memory(config: Config, world_size: int, on_gpu: bool) -> Memory:
    """Plan the memory of a rank.

    Args:
        config: Configuration of the run.
        world_size: Number of ranks.
        on_gpu: Whether to plan for the attention backend of a GPU.
    """
    state = plan_state(config, world_size)
    host = dict(state.host)
    if config.training.activation_checkpointing == "offload":
        host["activations"] = offloaded_bytes(config, on_gpu)
    return Memory(state.device | plan_activations(config, on_gpu), host)


def plan_total(config: Config, world_size: int, on_gpu: bool) -> Memory:
    """Plan the same memory as `plan_memory`, but with activations as a single part, which takes half the time.

    Args:
        config: Configuration of the run.
        world_size: Number of ranks.
        on_gpu: Whether to plan for the attention backend of a GPU.
    """
    state = plan_state(config, world_size)
    host = dict(state.host)
    if config.training.activation_checkpointing == "offload":
        host["activations"] = offloaded_bytes(config, on_gpu)
    peak = activations(config, on_gpu).total + largest_temporary(config, on_gpu)
    return Memory(state.device | {"activations": peak}, host)


@cache
def plan_state(config: Config, world_size: int) -> Memory:
    """Plan the memory of a rank without activations: the part needed even with the shortest samples.

    Args:
        config: Configuration of the run.
        world_size: Number of ranks.
    """
    zero = config.zero
    limits = stage3_limits(config.model, config.zero, config.parallel.tp)
    ranks = config.replicas(world_size)
    one = run_weights(config)
    if zero.stage == 3:
        one = run_pass(config)
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

    weight_bytes = element_bytes(config.training.precision)
    device = {
        "weights": _weight_elements(parameters, ranks, zero, limits) * weight_bytes,
        "gradients": gradients * GRADIENT_BYTES,
        "master weights": master_weights * FLOAT32_BYTES,
        "moments": _optimizer_state(config, trained, world_size),
    }
    if zero.stage in (1, 2):
        device["flattened gradients"] = share * GRADIENT_BYTES
    if config.optimizer.ema_decay:
        device["moving average"] = state * FLOAT32_BYTES

    host: dict[str, float] = {}
    if config.checkpoint.background:
        host["copies for checkpoints"] = state * FLOAT32_BYTES + device["moments"] + device.get("moving average", 0)
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


def _optimizer_state(config: Config, trained: list[nn.Parameter], world_size: int) -> float:
    """Return the bytes of optimizer state on a rank: of its elements, and of whole matrices on the rank that has most.

    Args:
        config: Configuration of the run.
        trained: Trained weights of the rank's share of the model.
        world_size: Number of ranks.
    """
    entry = OPTIMIZERS[config.optimizer.kind]
    by_element = [parameter for parameter in trained if not is_whole(parameter, config.optimizer)]
    num_elements: float = elements(by_element)
    if config.zero.stage:
        ranks = config.replicas(world_size)
        num_elements = elements(by_element, ranks) / ranks
    return FLOAT32_BYTES * len(entry.state) * num_elements + plan_matrices(config, world_size).state


def checkpoint_bytes(config: Config) -> int:
    """Return the bytes of a checkpoint's tensors: float32 weights, and the optimizer state of trained weights.

    Weights that a run with training.init_from freezes are left out of the checkpoint, as if `init_from` had all of them.
    """
    model = meta_model(config.model)
    freeze(model, config.training.trainable, config.training.frozen)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    num_elements = elements(trained)
    if config.training.init_from is None:
        num_elements = count_parameters(config.model).total
    if config.optimizer.ema_decay:
        num_elements += elements(trained)
    num_elements += sum(_state_elements(config.optimizer, parameter) for parameter in trained)
    return FLOAT32_BYTES * num_elements


def _state_elements(optimizer: OptimizerConfig, parameter: nn.Parameter) -> int:
    """Return the number of elements of the optimizer state of a whole parameter."""
    shape = spec_of(parameter).shape
    entry = OPTIMIZERS[optimizer.kind]
    if is_whole(parameter, optimizer):
        return sum(map(prod, entry.matrix_shapes(shape).values()))
    return len(entry.state) * prod(shape)
