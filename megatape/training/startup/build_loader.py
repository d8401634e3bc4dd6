"""Builds the reader of training samples."""

from megatape.config import DataConfig, ModelConfig, TrainingConfig
from megatape.config.sections.batches import BatchSizes
from megatape.data.training.batches.loader import Loader
from megatape.data.training.mixing.mixture import Mixture
from megatape.distributed.mesh import Axis
from megatape.encodings import encoding_of
from megatape.utils.values.rounding import divide_up


def build_loader(
    config: DataConfig,
    model: ModelConfig,
    training: TrainingConfig,
    batches: BatchSizes,
    samples: Mixture,
    axis: Axis,
) -> Loader:
    """Build the reader of this rank's training samples.

    Args:
        config: Data configuration.
        model: Model configuration.
        training: Training configuration, with the micro-batch size.
        batches: Batch sizes.
        samples: Training samples, opened by this rank.
        axis: Ranks that read different samples.
    """
    warmup = {}
    for stage in config.length_warmup:
        warmup[stage.length] = divide_up(stage.tokens, config.sequence_length)
    return Loader(
        samples,
        batches=batches,
        micro_batch_size=training.micro_batch_size,
        rank=axis.rank,
        world_size=axis.size,
        positions=encoding_of(model).positions(config.random_offset),
        warmup=warmup,
    )
