"""Loads the state that a run starts from: a checkpoint, or a new state at step 0."""

from functools import partial

import torch

from megatape.config import Config
from megatape.data.training.run_data import RunData
from megatape.optim.legacy_schedules import check_new_run
from megatape.reliability.goodput.parts import TimePart
from megatape.training.start import Start
from megatape.training.startup.state.new_run_state import new_run_state
from megatape.training.startup.state.resuming import check_continues, resumed_checkpoint
from megatape.training.trainer import Trainer


def load_starting_state(trainer: Trainer, config: Config, data: RunData, start: Start) -> None:
    """Load the state that a run starts from. Collective.

    Args:
        trainer: Trainer to load it into.
        config: Configuration.
        data: Data, opened by this rank.
        start: Starting point.

    Raises:
        UserError, FileNotFoundError: The run must not continue from the checkpoint, or cannot start with these weights.
    """
    environment = trainer.environment
    # Our modules have their own generators. This one is for users' encodings and backends, and checkpoints store it.
    torch.manual_seed(config.training.seed + environment.topology.rank)
    if start.resumes:
        check = partial(check_continues, config, data, trainer.attention, start.allow_changes, environment)
        reader = resumed_checkpoint(start.checkpoint, environment, check)
        if reader is not None:
            trainer.resume(reader)
            return
    check_new_run(config.schedule)
    parameters = trainer.engine.state.parameters
    with environment.clock.measure(TimePart.WEIGHTS):
        state = new_run_state(config.model, config.training, parameters, environment, data.tokenizer)
        trainer.checkpoints.load(state)
