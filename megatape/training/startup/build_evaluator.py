"""Builds the evaluator, which reads the validation samples."""

from megatape.config import DataConfig, EvaluationConfig, ModelConfig, TrainingConfig
from megatape.data.training.run_data import RunData
from megatape.encodings import encoding_of
from megatape.reliability.watch.pace import Pace
from megatape.training.position_views.viewer import PositionViewer
from megatape.training.validation.evaluator import Evaluator
from megatape.training.validation.reader import ValidationReader
from megatape.zero.engine import Engine


def build_evaluator(
    config: DataConfig,
    model: ModelConfig,
    training: TrainingConfig,
    evaluation: EvaluationConfig,
    data: RunData,
    engine: Engine,
    pace: Pace,
) -> Evaluator:
    """Build the evaluator.

    Args:
        config: Data configuration.
        model: Model configuration.
        training: Training configuration, with the micro-batch size.
        evaluation: Evaluation configuration, with the number of samples.
        data: Data, opened by this rank.
        engine: Model under DeepSpeed.
        pace: Receives this rank's phases, for the watch.
    """
    encoding = encoding_of(model)
    viewer = None
    if encoding.carries_state:
        viewer = PositionViewer(engine, data.tokenizer.decode)
    reader = ValidationReader(
        data,
        encoding.positions(config.random_offset),
        training.micro_batch_size,
        training.seed,
        # Ranks that read different samples.
        engine.mesh["batch"],
        has_view=viewer is not None,
    )
    return Evaluator(engine, reader, evaluation.samples, data.train.shares, viewer, pace)
