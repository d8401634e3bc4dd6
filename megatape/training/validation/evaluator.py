"""Evaluation during training: the loss on the validation splits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from megatape.data.training.loader import Batch, evaluation_batches
from megatape.data.training.mixture import without_unnamed
from megatape.data.training.positions import Positions
from megatape.data.training.run_data import RunData
from megatape.data.training.selection import NEW_SELECTION, Selection
from megatape.errors import UserError
from megatape.training.position_views.computation import view_positions
from megatape.training.position_views.view import PositionView
from megatape.zero.engine import Engine, EvaluationLosses, Inputs


@dataclass(frozen=True)
class Validation:
    """Losses in nats per target, and the position view.

    Attributes:
        loss: Mean loss; of a mixture, the mean of the corpora's losses by their first shares.
        positions: Position view on the main rank. None elsewhere, and for an encoding whose blocks change no position tensor.
        corpora: Loss on each corpus of a mixture.
        inputs: Loss on each input of a data directory that has several. Of a mixture, the name begins with the corpus.
        ema_loss: Loss of the average of the weights; None if the run keeps no average.
        selection: Selection of the samples (data/training/selection.py).
    """

    loss: float
    positions: PositionView | None
    corpora: dict[str, float] = field(default_factory=dict)
    inputs: dict[str, float] = field(default_factory=dict)
    ema_loss: float | None = None
    selection: Selection = NEW_SELECTION

    @property
    def parts(self) -> dict[str, float]:
        """Losses on the corpora and inputs, by name."""
        return self.corpora | self.inputs


@dataclass(frozen=True)
class SplitBatches:
    """This rank's share of the samples of one validation split.

    Attributes:
        groups: Names of the inputs of all samples; one empty name if the samples are not divided.
        batches: Micro-batches, each with the name of its input.
    """

    groups: list[str]
    batches: list[tuple[str, Batch]]


@dataclass(frozen=True)
class ValidationBatches:
    """This rank's share of the validation data.

    Attributes:
        selection: Selection of the samples.
        splits: Share of each corpus's samples, by name of the corpus.
        viewed: First sample of the first corpus, the same on all ranks.
        error: Reason why the data cannot be read, or "".
    """

    selection: Selection
    splits: dict[str, SplitBatches]
    viewed: list[Batch]
    error: str = ""


class Evaluator:
    """Measures the loss of a run on its validation splits.

    Args:
        engine: Engine of the run.
        data: Data opened by this rank.
        positions: Position ids that the encoding gives the tokens of samples.
        micro_batch_size: Number of samples in a micro-batch.
        seed: Seed of the run.
        views_positions: Whether to view position tensors, because the encoding's blocks change them.
    """

    def __init__(
        self,
        engine: Engine,
        data: RunData,
        positions: Positions,
        micro_batch_size: int,
        seed: int,
        views_positions: bool,
    ) -> None:
        self._engine = engine
        self._data = data
        self._positions = positions
        self._micro_batch_size = micro_batch_size
        self._seed = seed
        self._views_positions = views_positions

    def read(self, selection: Selection) -> ValidationBatches:
        """Read this rank's share of evaluation.samples samples of each validation split, before any of it is used."""
        # Ranks that read different samples.
        axis = self._engine.mesh["batch"]
        splits: dict[str, SplitBatches] = {}
        viewed: list[Batch] = []
        try:
            for name, split in self._data.validation.items():
                if not viewed:
                    first = evaluation_batches(split, {"": [0]}, 1, 0, 1, self._positions, self._seed)
                    viewed = [batch for _, batch in first]
                groups = self._data.evaluated[selection][name]
                batches = evaluation_batches(
                    split,
                    groups,
                    self._micro_batch_size,
                    axis.rank,
                    axis.size,
                    self._positions,
                    self._seed,
                )
                splits[name] = SplitBatches(list(groups), list(batches))
        except (UserError, OSError) as error:
            return ValidationBatches(selection, {}, [], str(error))
        return ValidationBatches(selection, splits, viewed)

    def evaluate(self, batches: ValidationBatches) -> Validation | None:
        """Compute the loss on the validation splits of all ranks, and the position view. Collective.

        Returns:
            The result, or None if the samples of a split have no targets.
        """
        engine = self._engine
        losses = self._losses(batches)
        if not all(of_split.groups for of_split in losses.values()):
            return None
        ema_loss = None
        if engine.state.ema_decay:
            with engine.state.ema_weights():
                ema_loss = self._mean(self._losses(batches))
        loss = self._mean(losses)
        view = None
        if self._views_positions and math.isfinite(loss):
            text = on_device(batches.viewed[0], engine.device)
            view = view_positions(engine, text, self._data.tokenizer.decode)
        corpora = {corpus: of_split.mean for corpus, of_split in losses.items()}
        return Validation(loss, view, without_unnamed(corpora), _input_losses(losses), ema_loss, batches.selection)

    def _losses(self, batches: ValidationBatches) -> dict[str, EvaluationLosses]:
        """Compute the losses on each split, by corpus. Collective."""
        losses = {}
        for corpus, split in batches.splits.items():
            num_targets = dict.fromkeys(split.groups, 0)
            for group, batch in split.batches:
                num_targets[group] += batch.num_targets
            inputs = ((group, on_device(batch, self._engine.device)) for group, batch in split.batches)
            losses[corpus] = self._engine.evaluate(inputs, num_targets)
        return losses

    def _mean(self, losses: Mapping[str, EvaluationLosses]) -> float:
        """Return the mean of the corpora's losses by their first shares."""
        shares = self._data.train.shares
        return sum(shares[corpus] * of_split.mean for corpus, of_split in losses.items())


def _input_losses(losses: Mapping[str, EvaluationLosses]) -> dict[str, float]:
    """Return the losses on the inputs of data directories that have several, by name."""
    by_input: dict[str, float] = {}
    for corpus, of_split in losses.items():
        if len(of_split.groups) == 1:
            continue
        prefix = ""
        if corpus:
            prefix = f"{corpus}: "
        for group, loss in of_split.groups.items():
            by_input[f"{prefix}{group}"] = loss
    return by_input


def on_device(batch: Batch, device: torch.device) -> Inputs:
    """Return the batch on a device, without waiting for the copy."""
    return vars(batch.mapped(lambda tensor: tensor.to(device, non_blocking=True)))
