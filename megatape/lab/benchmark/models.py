"""Models that are measured, with random weights that act like trained ones, and a training step of them.

Shapes are those of configs/, one GPU's micro-batch of each, and the paper's.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from megatape.attention.attend import backends_by_priority
from megatape.config import Config, ModelConfig, parse_config
from megatape.encodings import encoding_of
from megatape.lab.benchmark.timing import captured
from megatape.lab.encodings import BASELINE
from megatape.lab.paper import COST_LAYERS, COST_LENGTH, SHAPE
from megatape.model.build import build_model
from megatape.model.requirements import attention_requirements
from megatape.model.transformer import Transformer
from megatape.nn.fp8 import fp8_product
from megatape.nn.parameters import spec_of
from megatape.utils.torch_internals import copy_all, fail_beyond_recompile_limit, zero_all


@dataclass(frozen=True)
class Shape:
    """A model and a micro-batch of B sequences of N tokens."""

    model: ModelConfig
    batch: int
    length: int

    def with_layers(self, count: int) -> "Shape":
        """This shape with another number of layers."""
        return replace(self, model=self.model.model_copy(update={"num_layers": count}))

    def config(self, encoding: str, precision: str, **training: Any) -> Config:
        """Configuration of a run with another encoding on one GPU. training: further values of its section training."""
        batch = {"global_batch_size": self.batch, "micro_batch_size": self.batch}
        return parse_config(
            {
                "run": {"directory": "unused"},
                "model": self.model.model_dump() | {"encoding": encoding},
                "data": {"path": "unused", "sequence_length": self.length},
                "training": {"steps": 1, "precision": precision} | batch | training,
                "optimizer": {"learning_rate": 1e-4},
                "zero": {"stage": 2},
            },
            "benchmark",
        )


def _shape(batch: int, length: int, layers: int, width: int, heads: int, mlp: int, vocab: int = 32000, **rest: int) -> Shape:
    sizes = {"num_layers": layers, "hidden_size": width, "num_heads": heads, "mlp_size": mlp, "vocab_size": vocab}
    return Shape(ModelConfig.model_validate(sizes | {"max_positions": length} | rest), batch, length)


SHAPES = {
    "155m": _shape(16, 1024, 12, 768, 12, 3072, position_size=48),
    "1b": _shape(4, 2048, 24, 2048, 16, 5632),
    "7b": _shape(2, 4096, 32, 4096, 32, 11008),
    "8b": _shape(1, 8192, 32, 4096, 32, 14336, vocab=128256, num_kv_heads=8),
}
# One for each, with the same relations between its sizes; multiples of 16, which FP8 products need.
TINY = {
    "155m": _shape(2, 32, 2, 32, 4, 48, vocab=512),
    "1b": _shape(1, 48, 2, 32, 2, 48, vocab=512),
    "7b": _shape(1, 48, 5, 32, 2, 48, vocab=512),
    "8b": _shape(1, 48, 2, 32, 4, 48, vocab=512, num_kv_heads=2),
}


def shapes(tiny: bool) -> dict[str, Shape]:
    """The shapes of a benchmark, by name."""
    return TINY if tiny else SHAPES


# Position weights are zero only before training. Gains: the size they reach in 50 steps (docs/benchmarks.md); W_up: as W_down.
GAIN_STD = 0.06
UP_STD = 0.02


def paper_config() -> ModelConfig:
    """The paper's 155M model with RoPE."""
    return ModelConfig.model_validate(SHAPE | {"num_layers": COST_LAYERS, "max_positions": COST_LENGTH, "encoding": BASELINE})


def configured_model(config: Config | None, layers: int | None, length: int = 0) -> ModelConfig:
    """The model of a configuration, by default the paper's, with this number of layers and positions for this length."""
    model = paper_config() if config is None else config.model
    sizes = {"num_layers": layers or model.num_layers, "max_positions": max(model.max_positions, length)}
    return ModelConfig.model_validate(model.model_dump() | sizes)


def compute_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU, float32 elsewhere."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def compute_precision(device: torch.device) -> str:
    """The compute dtype as a value of training.precision."""
    return str(compute_dtype(device)).removeprefix("torch.")


def position_state(config: ModelConfig, positions: Tensor) -> Tensor:
    """The state at these positions of an encoding that has one."""
    state = encoding_of(config).state(positions)
    assert state is not None
    return state


def random_model(config: ModelConfig, generator: torch.Generator) -> Transformer:
    """A model with random weights that act like trained ones, on the generator's device."""
    with generator.device:
        model = build_model(config)
    for name, parameter in model.named_parameters():
        _draw(name, parameter, config.init_std, generator)
    return model


LEARNING_RATE = 3e-4


class RawStep:
    """A model with its gradients, its optimizer and a batch of random tokens.

    Attributes:
        model: Model with weights in the compute precision.
        masters: Weights in float32, which the optimizer updates.
        gradients: Gradients of the weights.
        tokens: Token ids [B, N + 1].
    """

    def __init__(self, config: Config, device: torch.device) -> None:
        training = config.training
        batch = config.training.micro_batch_size
        length = config.data.sequence_length
        compiler = "inductor" if device.type == "cuda" else "aot_eager"  # the latter needs no C++ compiler
        if training.compile:
            torch.compiler.reset()  # it compiles a function for so many models, and runs it eagerly for the next one
            fail_beyond_recompile_limit()
        with device:
            self.model = build_model(
                config.model,
                fp8=None if training.fp8 == "none" else fp8_product(training.fp8, device),
                backends=backends_by_priority(training.attention, attention_requirements(config, device.type)[0]),
                update_by_kernel=device.type == "cuda",
                activation_checkpointing=training.activation_checkpointing,
                compiler=compiler if training.compile else None,
            )
        generator = torch.Generator(device).manual_seed(0)
        for name, parameter in self.model.named_parameters():
            _draw(name, parameter, config.model.init_std, generator)
        self.masters = [parameter.detach().clone() for parameter in self.model.parameters()]
        self.model.to(getattr(torch, training.precision))
        self.weights = [parameter.detach() for parameter in self.model.parameters()]
        self.gradients = [torch.zeros_like(weight) for weight in self.weights]
        for parameter, gradient, master in zip(self.model.parameters(), self.gradients, self.masters, strict=True):
            parameter.grad = gradient
            master.grad = torch.zeros_like(master)
        self.optimizer = torch.optim.AdamW(self.masters, lr=LEARNING_RATE, fused=True)
        self.positions = torch.arange(length, device=device).expand(batch, -1)
        self.tokens = torch.randint(config.model.vocab_size, (batch, length + 1), device=device, generator=generator)

    def loss(self) -> Tensor:
        """The mean loss."""
        total: Tensor = self.model(self.tokens[:, :-1], self.positions, targets=self.tokens[:, 1:])
        return total / self.positions.numel()

    def update(self) -> None:
        """AdamW; gradients are zero after it."""
        copy_all([master.grad for master in self.masters if master.grad is not None], self.gradients)
        self.optimizer.step()
        copy_all(self.weights, self.masters)
        zero_all(self.gradients)

    def __call__(self) -> None:
        """A whole step."""
        self.loss().backward()
        self.update()

    def captured(self) -> Callable[[], None]:
        """A step whose forward and backward pass are a CUDA graph."""
        replay = captured(lambda: self.loss().backward())

        def step() -> None:
            replay()
            self.update()

        return step


@torch.no_grad()
def _draw(name: str, parameter: nn.Parameter, std: float, generator: torch.Generator) -> None:
    """Initial values on the device, but no zeros, so that position updates have an effect as in a trained model."""
    init = spec_of(parameter).init
    for ending, drawn in (("position.gain", GAIN_STD), ("position.up", UP_STD)):
        init, std = (None, drawn) if name.endswith(ending) else (init, std)
    if isinstance(init, float):
        parameter.fill_(init)
    elif init is None:
        parameter.normal_(0.0, std, generator=generator)
    else:
        parameter.uniform_(-init.bound, init.bound, generator=generator)
