"""Builds the evaluator, which reads the validation samples."""

from megatape.config import Config
from megatape.data.training.run_data import RunData
from megatape.encodings import encoding_of
from megatape.reliability.watch.pace import Pace
from megatape.training.position_views.viewer import PositionViewer
from megatape.training.validation.evaluator import Evaluator
from megatape.training.validation.reader import ValidationReader
from megatape.zero.engine import Engine


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
