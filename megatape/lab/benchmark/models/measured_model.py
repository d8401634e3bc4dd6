"""A model and its inputs for measurements, and transformers' Llama with the same shape.

B batch, N tokens, D hidden size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from megatape.accounting.memory.saved_tensors import record_saved
from megatape.accounting.whole_model.flops import forward_flops
from megatape.accounting.whole_model.parameters import count_parameters
from megatape.attention.attend import backends_by_priority
from megatape.attention.rotation import PositionState
from megatape.config import ActivationCheckpointing
from megatape.lab.benchmark.models.shapes import ModelShape, compute_dtype
from megatape.model.block import Block, Streams
from megatape.model.build import build_model
from megatape.model.init import initial_weight
from megatape.model.options import Kernels, TrainingOptions
from megatape.registry import AUTO

# (parameter name, shape) -> weight
Weights = dict[tuple[str, torch.Size], Tensor]


@dataclass(frozen=True)
class ModelCost:
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
        shape: ModelShape,
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

    def cost(self) -> ModelCost:
        """Return the counts. Runs `loss` and `blocks` to count the saved bytes."""
        config = self.model.config
        return ModelCost(
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
        from megatape.lab.benchmark.models import exported

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
