"""Computation of one rank in the forward and backward pass of a micro-batch."""

from dataclasses import dataclass, replace
from typing import Any, Self

from megatape.config import ActivationCheckpointing, Config, Fp8Recipe, ModelConfig, ParallelConfig


@dataclass(frozen=True)
class Workload:
    """One rank's share of a model and of a micro-batch, and how the rank computes it.

    Activations, collectives of the model and operations follow from it. They are counted once for all ZeRO stages, optimizers
    and numbers of data-parallel ranks.

    Attributes:
        model: Shape of the whole model, and its adapters.
        parallel: Ranks that divide the model and its samples.
        sequence_length: Tokens of a sample.
        micro_batch_size: Samples of a micro-batch.
        mask_documents: Whether attention is masked at the starts of documents.
        trainable: Patterns of training.trainable.
        frozen: Patterns of training.frozen.
        precision: Precision of the passes, "float32" or "bfloat16".
        fp8: Recipe for products in FP8.
        attention: Attention backend, or "auto".
        num_shifted_groups: Number of groups of shifted sparse attention, None for dense attention.
        activation_checkpointing: Activations that the backward pass recomputes.
        chunk_tokens: Maximum tokens of a sample that pass MLP and position update at a time, None for all.
        compile: Whether torch.compile fuses the parts of the blocks.
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
    num_shifted_groups: int | None
    activation_checkpointing: ActivationCheckpointing
    chunk_tokens: int | None
    compile: bool

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Return the workload of a run."""
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
            num_shifted_groups=training.num_shifted_groups,
            activation_checkpointing=training.activation_checkpointing,
            chunk_tokens=training.chunk_tokens,
            compile=training.compile,
        )

    def with_model(self, **fields: Any) -> Self:
        """Return the same workload with other fields of the model, unchecked."""
        return replace(self, model=self.model.model_copy(update=fields))

    def with_ranks(self, **sizes: int) -> Self:
        """Return the same workload with other numbers of ranks, unchecked."""
        return replace(self, parallel=self.parallel.model_copy(update=sizes))

    @property
    def rank_sample_tokens(self) -> int:
        """Tokens of a sample that a rank keeps between blocks."""
        return self.sequence_length // self.parallel.sample_ranks

    @property
    def replica_tokens(self) -> int:
        """Tokens of a micro-batch in a layer's products on a rank. Tensor-parallel ranks divide the weights instead."""
        return self.micro_batch_size * self.sequence_length // self.parallel.sample_replicas

    @property
    def num_chunks(self) -> int:
        """Number of chunks of a sample in MLP and position update."""
        chunk_tokens = self.chunk_tokens or self.rank_sample_tokens
        return -(-self.rank_sample_tokens // chunk_tokens)

    @property
    def recomputes_blocks(self) -> bool:
        """Whether the backward pass recomputes blocks from their inputs."""
        return self.activation_checkpointing in ("full", "offload")

    @property
    def element_bytes(self) -> int:
        """Bytes of a weight or an activation in the passes."""
        if self.precision == "bfloat16":
            return 2
        return 4
