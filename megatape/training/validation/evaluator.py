"""Evaluating while training: the loss on the validation splits."""

import math
from collections.abc import Mapping

from megatape.data.training.mixing.corpus_names import without_unnamed
from megatape.data.training.selection import Selection
from megatape.errors import DataError
from megatape.reliability.watch.pace import Pace
from megatape.training.position_views.viewer import PositionViewer
from megatape.training.steps.readable_check import check_readable
from megatape.training.validation.batches import ValidationBatches
from megatape.training.validation.reader import ValidationReader
from megatape.training.validation.result import Validation
from megatape.zero.engine import Engine
from megatape.zero.passes.evaluation_losses import EvaluationLosses


class Evaluator:
    """Measures the loss on the validation splits. Collective, like `evaluate`.

    Args:
        engine: Model under DeepSpeed.
        reader: Reads this rank's share of the samples.
        num_samples: Validation samples per corpus (evaluation.samples), for messages.
        shares: First share of each corpus in the mixture.
        viewer: Computes the position view, or None for encodings whose blocks change no position tensor.
        pace: Receives this rank's phases, for the watch.
    """

    def __init__(
        self,
        engine: Engine,
        reader: ValidationReader,
        num_samples: int,
        shares: Mapping[str, float],
        viewer: PositionViewer | None,
        pace: Pace,
    ) -> None:
        self._engine = engine
        self._reader = reader
        self._num_samples = num_samples
        self._shares = shares
        self._viewer = viewer
        self._pace = pace

    def evaluate(self, step: int, selection: Selection) -> Validation:
        """Compute the validation loss, and the position view.

        Args:
            step: Step after which to evaluate, for messages.
            selection: Rule for selecting samples.

        Raises:
            DataError: A rank cannot read its samples, or a split has no targets. Raised on all ranks.
        """
        with self._pace.waiting("the reading of validation data"):
            batches = self._reader.read(selection)
        (num_unreadable,) = self._engine.sum_over_ranks(batches.error is not None)
        check_readable(num_unreadable, batches.error, f"the validation data after step {step}", self._engine.topology)

        losses = self._losses(batches)
        if not all(split_losses.groups for split_losses in losses.values()):
            raise DataError(
                f"the evaluation after step {step}: the {self._num_samples:,} validation samples of a corpus have "
                "no targets: raise evaluation.samples, or prepare other validation data"
            )
        loss = self._mean(losses)
        ema_loss = self._ema_loss(batches)
        view = None
        if self._viewer is not None and batches.viewed is not None and math.isfinite(loss):
            view = self._viewer.view(batches.viewed)
        corpora = {corpus: split_losses.mean for corpus, split_losses in losses.items()}
        return Validation(loss, view, without_unnamed(corpora), _input_losses(losses), ema_loss, selection)

    def _ema_loss(self, batches: ValidationBatches) -> float | None:
        """Return the loss of the averaged weights, or None if the run keeps no average. Collective."""
        average = self._engine.state.average
        if average is None:
            return None
        with average.replacing_weights():
            return self._mean(self._losses(batches))

    def _losses(self, batches: ValidationBatches) -> dict[str, EvaluationLosses]:
        """Compute corpus -> losses on its split. Collective."""
        losses = {}
        for corpus, split in batches.splits.items():
            num_targets = dict.fromkeys(split.groups, 0)
            for group, batch in split.batches:
                num_targets[group] += batch.num_targets
            inputs = ((group, batch.inputs_on(self._engine.device)) for group, batch in split.batches)
            losses[corpus] = self._engine.evaluate(inputs, num_targets)
        return losses

    def _mean(self, losses: Mapping[str, EvaluationLosses]) -> float:
        """Average the corpora's losses, weighted by their first shares."""
        return sum(self._shares[corpus] * split_losses.mean for corpus, split_losses in losses.items())


def _input_losses(losses: Mapping[str, EvaluationLosses]) -> dict[str, float]:
    """Return input -> loss, for data directories with several inputs."""
    by_input: dict[str, float] = {}
    for corpus, split_losses in losses.items():
        if len(split_losses.groups) == 1:
            continue
        prefix = ""
        if corpus:
            prefix = f"{corpus}: "
        for group, loss in split_losses.groups.items():
            by_input[f"{prefix}{group}"] = loss
    return by_input
