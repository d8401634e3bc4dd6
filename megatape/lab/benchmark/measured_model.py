"""Models with different encodings that share their weights, and their timed parts.

B batch, N tokens, D hidden size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor, nn

from megatape.accounting.flops import forward_flops
from megatape.accounting.parameters import count_parameters
from megatape.accounting.saved_tensors import record_saved
from megatape.attention.attend import backends_by_priority
from megatape.attention.rotation import PositionState
from megatape.config import ActivationCheckpointing
from megatape.lab.benchmark.models import Shape, compute_dtype
from megatape.lab.encodings import BASELINE, with_encoding
from megatape.model.block import Block, Streams
from megatape.model.build import build_model
from megatape.model.init import initial_weight
from megatape.model.options import Kernels, TrainingOptions
from megatape.registry import AUTO

# (parameter name, shape) -> weight
Weights = dict[tuple[str, torch.Size], Tensor]


class ModelName(NamedTuple):
    """Measured model: an encoding (or LLAMA's name) and an activation checkpointing mode."""

    encoding: str
    checkpointing: ActivationCheckpointing = "none"

    def __str__(self) -> str:
        if self.checkpointing == "none":
            return self.encoding
        return f"{self.encoding}, {self.checkpointing}"


LLAMA = ModelName("Llama of transformers")
ROPE = ModelName(BASELINE)


@dataclass(frozen=True)
class Cost:
    """Costs of a model.

    Attributes:
        parameters: Number of weights.
        flops: Forward FLOPs per sequence.
        saved: Bytes kept for a batch's backward pass, without weights.
        saved_blocks: Bytes kept for the blocks alone.
    """

    parameters: int
    flops: int
    saved: int
    saved_blocks: int


class MeasuredModel:
    """A model and its inputs.

    Attributes:
        model: Model with one encoding.
        tokens: Token ids [B, N].
        positions: Position ids [B, N].
        state: Encoding state at these positions.
        x: Block input [B, N, D].
    """

    def __init__(
        self,
        shape: Shape,
        device: torch.device,
        weights: Weights,
        attention: str = AUTO,
        checkpointing: ActivationCheckpointing = "none",
    ) -> None:
        """Build the model.

        Args:
            shape: Model and batch.
            device: Device to run on.
            weights: Weights shared with other models. Missing ones are added.
            attention: Value of training.attention.
            checkpointing: Value of training.activation_checkpointing.
        """
        config = shape.model
        batch = shape.batch
        length = shape.length
        dtype = compute_dtype(device)
        backends = None
        if attention != AUTO:
            backends = backends_by_priority(attention)
        kernels = Kernels(backends=backends, rotation_by_kernel=True, update_by_kernel=True)
        training = TrainingOptions(activation_checkpointing=checkpointing)
        self.model = build_model(config, kernels=kernels, training=training)
        for name, parameter in self.model.named_parameters():
            key = name, parameter.shape
            if key not in weights:
                weights[key] = initial_weight(name, parameter, config.init_std, 0).to(device, dtype)
            parameter.data = weights[key]

        num_tokens = batch * length
        self.tokens = torch.arange(num_tokens, device=device).view(batch, length) % config.vocab_size
        evaluated = self.model.encoding.positions(random_offset=False).evaluation(length, 0)
        self.positions = torch.as_tensor(evaluated).to(device).expand(batch, -1)
        self.state = PositionState(self.model.encoding.state(self.positions))
        x = torch.linspace(-1, 1, num_tokens * config.hidden_size, device=device, dtype=dtype)
        self.x = x.view(batch, length, -1)

    def loss(self) -> Tensor:
        """Run the model's forward pass. Returns the loss."""
        return self.model(self.tokens, self.positions, targets=self.tokens)

    def blocks(self) -> Tensor:
        """Run the blocks alone, without embedding, final norm, head and loss. Returns the output's sum."""
        state = PositionState(self.model.encoding.state(self.positions))
        streams = Streams(self.x.detach().requires_grad_(), state)
        for block in self.model.blocks:
            streams = block(streams)
        return streams.x.sum()

    @torch.no_grad()
    def inference(self) -> None:
        """Compute all logits, without gradients or a cache."""
        self.model(self.tokens, self.positions)

    @torch.no_grad()
    def attention_layer(self) -> None:
        """Run one block's attention and position update, without gradients. Attention's output replaces the MLP's."""
        block = next(module for module in self.model.modules() if isinstance(module, Block))
        with block.reading_state():
            attended, attended_positions = block.attention(self.x, self.state)
        if block.position is not None:
            block.position(self.state, attended_positions, attended)

    def cost(self) -> Cost:
        """Return the counts. Runs `loss` and `blocks` to count the saved bytes."""
        config = self.model.config
        return Cost(
            parameters=count_parameters(config).total,
            flops=forward_flops(config, self.tokens.shape[1]),
            saved=self._saved_bytes(self.loss),
            saved_blocks=self._saved_bytes(self.blocks),
        )

    def _saved_bytes(self, forward: Callable[[], Tensor]) -> int:
        with record_saved(exclude=list(self.model.parameters())) as record:
            forward()
        return record.bytes


class MeasuredLlama:
    """transformers' Llama with the same shape and inputs, its own weights, and `sdpa`."""

    def __init__(self, measured: MeasuredModel) -> None:
        # transformers takes seconds to import.
        from megatape.lab.benchmark import exported

        self.tokens = measured.tokens
        self.x = measured.x
        config = measured.model.config
        length = measured.tokens.shape[1]
        models = exported.build(config, [], length, measured.x.device, measured.x.dtype)
        self.model = models[exported.LLAMA].train()

    def loss(self) -> Tensor:
        """Run the model's forward pass. Returns the loss."""
        return self.model(self.tokens, labels=self.tokens, use_cache=False).loss

    def blocks(self) -> Tensor:
        """Run the blocks and the final norm, which transformers does not separate. Returns the output's sum."""
        inputs = self.x.detach().requires_grad_()
        return self.model.base_model(inputs_embeds=inputs, use_cache=False).last_hidden_state.sum()


def train(model: nn.Module, forward: Callable[[], Tensor]) -> None:
    """Run a forward and a backward pass, without the optimizer."""
    forward().backward()
    model.zero_grad(set_to_none=True)


class MeasuredPart(NamedTuple):
    """Timed part of our models, and of transformers' Llama if it has that part."""

    title: str
    run: Callable[[MeasuredModel], None]
    run_llama: Callable[[MeasuredLlama], None] | None = None


def training_step(measured: MeasuredModel | MeasuredLlama) -> None:
    """Train the model."""
    train(measured.model, measured.loss)


def training_step_of_blocks(measured: MeasuredModel | MeasuredLlama) -> None:
    """Train the blocks alone."""
    train(measured.model, measured.blocks)


ATTENTION_LAYER = MeasuredPart("attention layer", MeasuredModel.attention_layer)
PARTS = (
    MeasuredPart("training step", training_step, training_step),
    MeasuredPart("training step, blocks alone", training_step_of_blocks, training_step_of_blocks),
    MeasuredPart("inference", MeasuredModel.inference),
    ATTENTION_LAYER,
)


def prepare(
    shape: Shape,
    encodings: list[str],
    device: torch.device,
    modes: Sequence[ActivationCheckpointing] = (),
) -> dict[ModelName, MeasuredModel]:
    """Return a model with each encoding, including the baseline. Common weights are shared.

    Args:
        shape: Model and batch.
        encodings: Encoding names.
        device: Device to run on.
        modes: Activation checkpointing modes, each adding a model per encoding.

    Raises:
        UserError: An encoding does not support the shape.
    """
    weights: Weights = {}
    names = encodings
    if BASELINE not in encodings:
        names = [BASELINE, *encodings]
    # Report an unsupported encoding before building models.
    encoded = {name: replace(shape, model=with_encoding(shape.model, name)) for name in names}
    model_names = [ModelName(name) for name in names]
    model_names += [ModelName(name, mode) for name, mode in product(names, modes)]
    measured_models = {}
    for model_name in model_names:
        encoded_shape = encoded[model_name.encoding]
        measured_models[model_name] = MeasuredModel(
            encoded_shape,
            device,
            weights,
            checkpointing=model_name.checkpointing,
        )
    return measured_models
