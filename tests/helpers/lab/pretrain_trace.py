"""Recording losses, gradients and weights during the first steps of `pretrain`, in a process started by the test server."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.training.trainer import Trainer
from tests.helpers.runs.trainers import trainer_without_lease

# Target for run_workers
TRACE = "tests.helpers.lab.pretrain_trace:trace"


class Trace(NamedTuple):
    """A run's first steps.

    Attributes:
        initial: Initial weights by name.
        gradients: Gradients in the first step before clipping, by name.
        losses: Loss in each step.
        norms: Gradient norm in each step before clipping.
        weights: Weights after the compared step by name.
        validation_loss: Validation loss after the last step.
    """

    initial: dict[str, Tensor]
    gradients: dict[str, Tensor]
    losses: list[float]
    norms: list[float]
    weights: dict[str, Tensor]
    validation_loss: float


def trace(payload: dict[str, Any], topology: Topology) -> None:
    """Train the configurations in {"configs": [...], "files": [...], "compared_step": n}, and write the Trace of each."""
    for raw, file in zip(payload["configs"], payload["files"], strict=True):
        trainer = trainer_without_lease(parse_config(raw, "here"), topology)
        torch.save(tuple(_trace(trainer, payload["compared_step"])), file)


def read_trace(file: Path) -> Trace:
    return Trace(*torch.load(file))


def _trace(trainer: Trainer, compared_step: int) -> Trace:
    parameters = trainer.engine.state.parameters
    initial = copies(parameters)
    gradients: dict[str, Tensor] = {}
    hooks = []
    for name, parameter in parameters.items():

        def keep(gradient: Tensor, name: str = name) -> None:
            gradients[name] = gradient.clone()

        hooks.append(parameter.register_hook(keep))
    losses = []
    norms = []
    with trainer.stepper:
        while not trainer.is_finished:
            output = trainer.train_step()
            losses.append(output.loss)
            norms.append(output.grad_norm)
            for hook in hooks:
                hook.remove()
            if output.step == compared_step:
                weights = copies(parameters)
    validation = trainer.evaluate()
    return Trace(initial, gradients, losses, norms, weights, validation.loss)


def copies(parameters: dict[str, Any]) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}
