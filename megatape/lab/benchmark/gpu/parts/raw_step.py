"""Bare training step: forward pass, backward pass and AdamW, without DeepSpeed."""

from collections.abc import Callable

import torch
from torch import Tensor

from megatape.attention.attend import backends_by_priority
from megatape.config import Config
from megatape.lab.benchmark.figures.timing import captured
from megatape.lab.benchmark.models.shapes import draw_weight
from megatape.model.build import build_model
from megatape.model.options import Kernels, TrainingOptions
from megatape.model.requirements import attention_requirements
from megatape.nn.fp8 import fp8_linear_function
from megatape.nn.linear_function import LinearFunction, linear
from megatape.utils.pytorch.torch_internals import copy_all, fail_beyond_recompile_limit, zero_all

LEARNING_RATE = 3e-4


class RawStep:
    """A model with its gradients, its optimizer and a batch of random tokens.

    Attributes:
        model: Model in the compute precision.
        masters: float32 weights, updated by the optimizer.
        weights: Weights in the compute precision.
        gradients: Gradients in the compute precision.
        positions: Position ids [B, N].
        tokens: Token ids [B, N + 1].
    """

    def __init__(self, config: Config, device: torch.device) -> None:
        """Build the model with random weights that act like trained ones."""
        training = config.training
        batch = training.micro_batch_size
        length = config.data.sequence_length
        options = TrainingOptions(activation_checkpointing=training.activation_checkpointing)
        with device:
            self.model = build_model(config.model, kernels=_kernels(config, device), training=options)
        generator = torch.Generator(device).manual_seed(0)
        for name, parameter in self.model.named_parameters():
            draw_weight(name, parameter, config.model.init_std, generator)

        parameters = list(self.model.parameters())
        self.masters = [parameter.detach().clone() for parameter in parameters]
        self.model.to(getattr(torch, training.precision))
        self.weights = [parameter.detach() for parameter in parameters]
        self.gradients = [torch.zeros_like(weight) for weight in self.weights]
        for parameter, gradient, master in zip(parameters, self.gradients, self.masters, strict=True):
            parameter.grad = gradient
            master.grad = torch.zeros_like(master)
        self.optimizer = torch.optim.AdamW(self.masters, lr=LEARNING_RATE, fused=True)
        self.positions = torch.arange(length, device=device).expand(batch, -1)
        self.tokens = torch.randint(config.model.vocab_size, (batch, length + 1), device=device, generator=generator)

    def loss(self) -> Tensor:
        """Run the forward pass. Returns the mean loss."""
        total: Tensor = self.model(self.tokens[:, :-1], self.positions, targets=self.tokens[:, 1:])
        return total / self.positions.numel()

    def update(self) -> None:
        """Update the weights, and zero the gradients."""
        copy_all([master.grad for master in self.masters if master.grad is not None], self.gradients)
        self.optimizer.step()
        copy_all(self.weights, self.masters)
        zero_all(self.gradients)

    def __call__(self) -> None:
        """Run a step."""
        self.loss().backward()
        self.update()

    def captured(self) -> Callable[[], None]:
        """Return a step that replays both passes as a CUDA graph."""
        replay = captured(lambda: self.loss().backward())

        def step() -> None:
            replay()
            self.update()

        return step


def _kernels(config: Config, device: torch.device) -> Kernels:
    training = config.training
    on_gpu = device.type == "cuda"
    compiler = None
    if training.compile:
        # aot_eager needs no C++ compiler.
        compiler = "inductor" if on_gpu else "aot_eager"
        # torch.compile compiles a function for a limited number of models, and would run the next one eagerly.
        torch.compiler.reset()
        fail_beyond_recompile_limit()
    linear_function: LinearFunction = linear
    if training.fp8 != "none":
        linear_function = fp8_linear_function(training.fp8, device)
    need, *_ = attention_requirements(config, device.type)
    return Kernels(
        backends=backends_by_priority(training.attention, need),
        rotation_by_kernel=on_gpu,
        update_by_kernel=on_gpu,
        linear_function=linear_function,
        compiler=compiler,
    )
