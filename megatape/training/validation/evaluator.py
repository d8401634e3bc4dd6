"""Evaluation during training: the loss on the validation splits."""

import math
from collections.abc import Mapping

from megatape.data.training.corpus_names import without_unnamed
from megatape.data.training.loader import evaluation_batches
from megatape.data.training.positions import Positions
from megatape.data.training.run_data import RunData
from megatape.data.training.selection import Selection
from megatape.errors import DataError, UserError
from megatape.reliability.watch.pace import Pace
from megatape.training.inputs import on_device
from megatape.training.position_views.viewer import PositionViewer
from megatape.training.steps.unreadable import check_readable
from megatape.training.validation.batches import SplitBatches, ValidationBatches
from megatape.training.validation.result import Validation
from megatape.zero.engine import Engine, EvaluationLosses


class Evaluator:
    """Measures the loss of a run on its validation splits. Collective, like `evaluate`.

    Args:
        engine: Engine of the run.
        data: Data opened by this rank.
        positions: Position ids that the encoding gives the tokens of samples.
        num_samples: Number of validation samples of each corpus (evaluation.samples), for messages.
        micro_batch_size: Number of samples in a micro-batch.
        seed: Seed of the run.
        pace: Receives the phases of this rank, for the watch over the ranks.
        viewer: Computes the position view, None for an encoding whose blocks change no position tensor.
    """

    def __init__(
        self,
        engine: Engine,
        data: RunData,
        positions: Positions,
        num_samples: int,
        micro_batch_size: int,
        seed: int,
        pace: Pace,
        viewer: PositionViewer | None,
    ) -> None:
        self._engine = engine
        self._data = data
        self._positions = positions
        self._num_samples = num_samples
        self._micro_batch_size = micro_batch_size
        self._seed = seed
        self._pace = pace
        self._viewer = viewer

    def evaluate(self, step: int, selection: Selection) -> Validation:
        """Compute the loss on the validation splits of all ranks, and the position view.

        Args:
            step: Step after which the run is evaluated.
            selection: Selection of the samples.

        Raises:
            DataError: A rank cannot read its share, or the samples of a split have no targets. Raised on all ranks.
        """
        with self._pace.waiting("the reading of validation data"):
            batches = self._read(selection)
        (num_unreadable,) = self._engine.sum_over_ranks(bool(batches.error))
        check_readable(num_unreadable, batches.error, f"the validation data after step {step}", self._engine.topology)

        losses = self._losses(batches)
        if not all(of_split.groups for of_split in losses.values()):
            raise DataError(
                f"the evaluation after step {step}: the {self._num_samples:,} validation samples of a corpus have "
                "no targets: raise evaluation.samples, or prepare other validation data"
            )
        loss = self._mean(losses)
        ema_loss = self._ema_loss(batches)
        view = None
        if self._viewer is not None and batches.viewed is not None and math.isfinite(loss):
            view = self._viewer.view(batches.viewed)
        corpora = {corpus: of_split.mean for corpus, of_split in losses.items()}
        return Validation(loss, view, without_unnamed(corpora), _input_losses(losses), ema_loss, selection)

    def _read(self, selection: Selection) -> ValidationBatches:
        """Read this rank's share of the selected samples of each validation split, before any of it is used."""
        # Ranks that read different samples.
        axis = self._engine.mesh["batch"]
        splits: dict[str, SplitBatches] = {}
        viewed = None
        try:
            if self._viewer is not None:
                viewed = self._viewer.read()
            for name, split in self._data.validation.items():
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
            return ValidationBatches({}, error=str(error))
        return ValidationBatches(splits, viewed)

    def _ema_loss(self, batches: ValidationBatches) -> float | None:
        """Compute the loss of the average of the weights, None if the run keeps no average. Collective."""
        average = self._engine.state.average
        if average is None:
            return None
        with average.replacing_weights():
            return self._mean(self._losses(batches))

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
