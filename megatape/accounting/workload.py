"""Workload of one rank: the model, layout and settings of its forward and backward pass over a micro-batch."""

from dataclasses import dataclass, replace
from typing import Any, Self

from megatape.config import ActivationCheckpointing, Config, Fp8Recipe, ModelConfig, ParallelConfig
from megatape.config.layers.layer_pattern import NO_ENCODING
from megatape.config.sections.training import recomputes_blocks
from megatape.utils.values.rounding import divide_up


@dataclass(frozen=True)
class Workload:
    """One rank's share of a model and a micro-batch, and how the rank computes it.

    Activations, the model's collectives and GPU operations follow from it, so they are counted only once for all ZeRO stages,
    optimizers and numbers of data-parallel ranks.

    Attributes:
        model: Model section.
        parallel: Parallel section.
        sequence_length: Tokens per sample (data.sequence_length).
        micro_batch_size: Samples per micro-batch (training.micro_batch_size).
        mask_documents: Whether tokens see only their own document (data.mask_documents).
        trainable: Patterns of trained parameters (training.trainable).
        frozen: Patterns of frozen parameters (training.frozen).
        precision: Type of weights and activations, "bfloat16" or "float32" (training.precision).
        fp8: Recipe of FP8 products (training.fp8).
        attention: Attention backend, or "auto" (training.attention).
        deterministic: Whether gradients repeat bit for bit (training.deterministic).
        num_shifted_groups: Groups of shifted sparse attention, None for attention to all tokens (training.num_shifted_groups).
        activation_checkpointing: Activations that the backward pass recomputes (training.activation_checkpointing).
        chunk_tokens: Tokens per chunk in MLP and position update, None for no chunks (training.chunk_tokens).
        compile: Whether blocks are compiled (training.compile).
    """

    model: ModelConfig
    parallel: ParallelConfig
    sequence_length: int
    micro_batch_size: int
    mask_documents: bool
    trainable: tuple[str, ...]
    frozen: tuple[str, ...]
    precision: str
    fp8: Fp8Recipe
    attention: str
    deterministic: bool
    num_shifted_groups: int | None
    activation_checkpointing: ActivationCheckpointing
    chunk_tokens: int | None
    compile: bool

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Return a run's workload."""
        training = config.training
        return cls(
            model=config.model,
            parallel=config.parallel,
            sequence_length=config.data.sequence_length,
            micro_batch_size=training.micro_batch_size,
            mask_documents=config.data.mask_documents,
            trainable=training.trainable,
            frozen=training.frozen,
            precision=training.precision,
            fp8=training.fp8,
            attention=training.attention,
            deterministic=training.deterministic,
            num_shifted_groups=training.num_shifted_groups,
            activation_checkpointing=training.activation_checkpointing,
            chunk_tokens=training.chunk_tokens,
            compile=training.compile,
        )

    def with_model(self, **fields: Any) -> Self:
        """Return the same workload with other model fields, unchecked."""
        return replace(self, model=self.model.model_copy(update=fields))

    def without_positions(self) -> Self:
        """Return the same workload without position encodings, and with the same windows."""
        pattern = self.model.pattern
        for encoding in pattern.encodings:
            pattern = pattern.renamed(encoding, NO_ENCODING)
        return self.with_model(encoding=NO_ENCODING, scaling=None, layers=str(pattern), nope_every=None, sliding_window=None)

    def with_equal_layers(self) -> Self:
        """Return the same workload with the model's encoding and full attention in all layers."""
        return replace(self, model=self.model.with_equal_layers())

    def with_ranks(self, **sizes: int) -> Self:
        """Return the same workload on other numbers of ranks, unchecked."""
        return replace(self, parallel=self.parallel.model_copy(update=sizes))

    @property
    def rank_sample_tokens(self) -> int:
        """Tokens per sample that a rank holds between blocks."""
        return self.sequence_length // self.parallel.sample_ranks

    @property
    def replica_tokens(self) -> int:
        """Tokens of a micro-batch that a rank multiplies by its weights. Tensor-parallel ranks shard the weights instead."""
        return self.micro_batch_size * self.sequence_length // self.parallel.sample_replicas

    @property
    def num_chunks(self) -> int:
        """Chunks per sample in MLP and position update."""
        chunk_tokens = self.chunk_tokens or self.rank_sample_tokens
        return divide_up(self.rank_sample_tokens, chunk_tokens)

    @property
    def recomputes_blocks(self) -> bool:
        """Whether the backward pass recomputes blocks from their inputs."""
        return recomputes_blocks(self.activation_checkpointing)

    @property
    def element_bytes(self) -> int:
        """Bytes per weight or activation."""
        return 2 if self.precision == "bfloat16" else 4
