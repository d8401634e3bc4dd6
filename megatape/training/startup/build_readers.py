"""Builds the readers of samples: the training loader, and the evaluator."""

from megatape.config import Config, DataConfig, ModelConfig, TrainingConfig
from megatape.config.batches import BatchSizes
from megatape.data.training.loader import Loader
from megatape.data.training.mixture import Mixture
from megatape.data.training.run_data import RunData
from megatape.distributed.mesh import Axis
from megatape.encodings import encoding_of
from megatape.reliability.watch.pace import Pace
from megatape.training.position_views.viewer import PositionViewer
from megatape.training.validation.evaluator import Evaluator
from megatape.training.validation.reader import ValidationReader
from megatape.zero.engine import Engine


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
        warmup[stage.length] = -(-stage.tokens // config.sequence_length)
    return Loader(
        samples,
        batches=batches,
        micro_batch_size=training.micro_batch_size,
        rank=axis.rank,
        world_size=axis.size,
        positions=encoding_of(model).positions(config.random_offset),
        warmup=warmup,
    )


def build_evaluator(config: Config, data: RunData, engine: Engine, pace: Pace) -> Evaluator:
    """Build the evaluator.

    Args:
        config: Configuration.
        data: Data, opened by this rank.
        engine: Model under DeepSpeed.
        pace: Receives this rank's phases, for the watch.
    """
    encoding = encoding_of(config.model)
    viewer = None
    if encoding.carries_state:
        viewer = PositionViewer(engine, data.tokenizer.decode)
    reader = ValidationReader(
        data,
        encoding.positions(config.data.random_offset),
        config.training.micro_batch_size,
        config.training.seed,
        # Ranks that read different samples.
        engine.mesh["batch"],
        has_view=viewer is not None,
    )
    return Evaluator(engine, reader, config.evaluation.samples, data.train.shares, viewer, pace)
