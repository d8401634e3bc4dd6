"""Size of a checkpoint."""

from math import prod

from torch import nn

from megatape.accounting.element_sizes import STATE_BYTES, elements
from megatape.accounting.whole_model.parameters import count_parameters
from megatape.config import ModelConfig, OptimizerConfig, TrainingConfig
from megatape.model.build import meta_model
from megatape.model.trainable import freeze
from megatape.nn.parameters import spec_of
from megatape.optim.optimizer import is_whole
from megatape.registry import OPTIMIZERS


def checkpoint_bytes(model: ModelConfig, training: TrainingConfig, optimizer: OptimizerConfig) -> int:
    """Return the bytes of a checkpoint's tensors: float32 weights, and the optimizer state of trained weights.

    With training.init_from, frozen weights do not count, assuming that `init_from` has all of them.

    Args:
        model: Model section.
        training: Training section, which may freeze weights.
        optimizer: Optimizer section.
    """
    whole_model = meta_model(model)
    freeze(whole_model, training.trainable, training.frozen)
    trained = [parameter for parameter in whole_model.parameters() if parameter.requires_grad]
    num_elements = elements(trained)
    if training.init_from is None:
        num_elements = count_parameters(model).total
    if optimizer.ema_decay:
        num_elements += elements(trained)
    num_elements += sum(_state_elements(optimizer, parameter) for parameter in trained)
    return STATE_BYTES * num_elements


def _state_elements(optimizer: OptimizerConfig, parameter: nn.Parameter) -> int:
    """Return the number of optimizer state elements for a whole parameter."""
    shape = spec_of(parameter).shape
    entry = OPTIMIZERS[optimizer.kind]
    if is_whole(parameter, optimizer):
        return sum(map(prod, entry.matrix_shapes(shape).values()))
    return len(entry.state) * prod(shape)
