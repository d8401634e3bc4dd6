"""State of a run at step 0: a new model, or the weights of training.init_from."""

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from megatape.checkpoint.format.stored_weights import StoredWeights
from megatape.checkpoint.initial_weights import InitialWeights
from megatape.config import ModelConfig, TrainingConfig
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError, flag
from megatape.model.init import initial_block
from megatape.nn.parameters import spec_of
from megatape.run_environment import RunEnvironment
from megatape.training.startup.state.initial_weights import open_initial_weights
from megatape.training.startup.state.initial_weights_summary import summarize_initial_weights
from megatape.zero.state.interfaces import ReadBlock
from megatape.zero.state.kinds import EMA, WEIGHT


class NewRunState:
    """State of a run at step 0. A SavedState (checkpoint/interfaces.py).

    Args:
        fresh: Reads the state of a new model.
        weights: Weights to start with, or None for a new model.
        taken: Names of the parameters that start with `weights`.
        base: Frozen weights that checkpoints leave out, or None.

    Attributes:
        step: Steps made so far: 0.
        updates: Steps taken by the optimizer: 0.
        base: Frozen weights that checkpoints leave out because the files of training.init_from have them, or None.
    """

    step = 0
    updates = 0

    def __init__(
        self,
        fresh: ReadBlock,
        weights: InitialWeights | None = None,
        taken: Collection[str] = (),
        base: StoredWeights | None = None,
    ) -> None:
        self._fresh = fresh
        self._weights = weights
        self._taken = taken
        self.base = base

    def read(self, kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> Tensor:
        """Read some rows and columns of a tensor (zero/state/interfaces.py). A moving average starts with the weights."""
        if self._weights is not None and name in self._taken and kind in (WEIGHT, EMA):
            return self._weights.read(WEIGHT, name, shape, rows, columns)
        return self._fresh(kind, name, shape, rows, columns)


def new_run_state(
    model: ModelConfig,
    training: TrainingConfig,
    parameters: Mapping[str, nn.Parameter],
    environment: RunEnvironment,
    tokenizer: Tokenizer,
) -> NewRunState:
    """Return the state of a run at step 0. Collective over all ranks.

    Args:
        model: Model configuration.
        training: Training configuration, with the seed and the weights to start from.
        parameters: Name -> parameter.
        environment: Run environment.
        tokenizer: Tokenizer of the data.

    Raises:
        UserError: On every rank, the weights of training.init_from are missing, corrupted or another model's.
    """
    fresh = fresh_state(parameters, model.init_std, training.seed)
    if training.init_from is None:
        if environment.base is not None:
            raise UserError(
                f"{flag('base')} belongs to a checkpoint: add {flag('resume')} or training.init_from, or leave it out"
            )
        return NewRunState(fresh)

    frozen = {name for name, parameter in parameters.items() if not parameter.requires_grad}
    opened = open_initial_weights(Path(training.init_from), model, frozen, environment)
    if environment.topology.is_main:
        num_fresh = len(parameters) - len(opened.taken)
        environment.log.info("\n".join(summarize_initial_weights(opened.weights, model, num_fresh, tokenizer)))
    return NewRunState(fresh, opened.weights, opened.taken, opened.base)


def fresh_state(parameters: Mapping[str, nn.Parameter], init_std: float, seed: int) -> ReadBlock:
    """Return a reader of a new model's state: weights as the parameters declare them, zeros for the optimizer.

    Args:
        parameters: Name -> parameter.
        init_std: Standard deviation of the weights (model.init_std).
        seed: Seed of the weights (training.seed).
    """

    def read(kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> Tensor:
        if kind not in (WEIGHT, EMA):
            return torch.zeros(rows.stop - rows.start, columns.stop - columns.start)
        init = spec_of(parameters[name]).init
        return initial_block(name, shape, init, rows, columns, init_std, seed)

    return read
