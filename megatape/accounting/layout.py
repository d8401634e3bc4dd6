"""Division of a run across ranks: its batches, and the shards of its training state."""

from dataclasses import dataclass
from typing import Self

from megatape.accounting.workload import Workload
from megatape.config import Config, OptimizerConfig, ZeroConfig
from megatape.zero.deepspeed_config import Stage3Limits, stage3_limits
from megatape.zero.graph_limits import records_passes


@dataclass(frozen=True)
class TrainingLayout:
    """A run on a number of ranks: micro-batches per step, and where the training state lies.

    Attributes:
        workload: Model, batch and settings of a rank for a micro-batch.
        world_size: Number of ranks.
        num_micro_batches: Micro-batches per rank and step, after the batch-size warm-up.
        zero: ZeRO section.
        optimizer: Optimizer section.
        copies_state: Whether background checkpoints copy the training state to host memory.
        records_passes: Whether GPUs record forward and backward pass as CUDA graphs.
    """

    workload: Workload
    world_size: int
    num_micro_batches: int
    zero: ZeroConfig
    optimizer: OptimizerConfig
    copies_state: bool
    records_passes: bool

    @classmethod
    def from_config(cls, config: Config, world_size: int) -> Self:
        """Return the layout of a run on `world_size` ranks.

        Raises:
            ConfigError: The ranks or a batch do not divide evenly.
        """
        return cls(
            workload=Workload.from_config(config),
            world_size=world_size,
            num_micro_batches=config.num_micro_batches(world_size),
            zero=config.zero,
            optimizer=config.optimizer,
            copies_state=config.checkpoint.background,
            records_passes=records_passes(config, world_size),
        )

    @property
    def num_data_ranks(self) -> int:
        """Data-parallel ranks, which train on different samples."""
        return self.world_size // self.workload.parallel.sample_ranks

    @property
    def num_replicas(self) -> int:
        """Ranks training the same weights, across which ZeRO shards its state: all but tensor ranks."""
        return self.world_size // self.workload.parallel.tp

    @property
    def step_samples(self) -> int:
        """Samples per optimizer step, over all ranks."""
        return self.num_micro_batches * self.workload.micro_batch_size * self.num_data_ranks

    @property
    def step_tokens(self) -> int:
        """Tokens per optimizer step, over all ranks."""
        return self.step_samples * self.workload.sequence_length

    @property
    def stage3_limits(self) -> Stage3Limits:
        """Limits on gathered weights at ZeRO stage 3."""
        return stage3_limits(self.workload.model, self.zero, self.workload.parallel.tp)
