"""Reads this rank's share of the validation samples."""

from megatape.data.training.batches.batch import Batch
from megatape.data.training.batches.evaluation_reader import EvaluationReader
from megatape.data.training.batches.positions import Positions
from megatape.data.training.run_data import RunData
from megatape.data.training.selection import Selection
from megatape.distributed.mesh import Axis
from megatape.errors import UserError, marked_message
from megatape.training.validation.batches import SplitBatches, ValidationBatches


class ValidationReader:
    """Reads a rank's share of the validation samples, and the sample of the position view.

    Args:
        data: Data, opened by this rank.
        positions: Position ids of tokens, as the encoding wants them.
        micro_batch_size: Samples per micro-batch.
        seed: Seed of random positions.
        axis: Ranks that read different samples.
        has_view: Whether to read the sample of the position view.
    """

    def __init__(
        self,
        data: RunData,
        positions: Positions,
        micro_batch_size: int,
        seed: int,
        axis: Axis,
        has_view: bool,
    ) -> None:
        self._data = data
        self._positions = positions
        self._micro_batch_size = micro_batch_size
        self._seed = seed
        self._axis = axis
        self._has_view = has_view

    def read(self, selection: Selection) -> ValidationBatches:
        """Read the selected samples of all splits before using any of them. The result may be an error instead."""
        splits = {}
        viewed = None
        try:
            if self._has_view:
                viewed = self._read_viewed()
            for corpus in self._data.validation:
                splits[corpus] = self._read_split(corpus, selection)
        except (UserError, OSError) as error:
            return ValidationBatches({}, error=marked_message(error))
        return ValidationBatches(splits, viewed)

    def _read_split(self, corpus: str, selection: Selection) -> SplitBatches:
        """Read this rank's share of a split. Raises UserError or OSError."""
        split = self._data.validation[corpus]
        groups = self._data.evaluated[selection][corpus]
        reader = EvaluationReader(self._micro_batch_size, self._axis.rank, self._axis.size, self._positions, self._seed)
        return SplitBatches(list(groups), list(reader.batches(split, groups)))

    def _read_viewed(self) -> Batch:
        """Read the sample of the position view: the first one of the first split, the same on all ranks."""
        split = next(iter(self._data.validation.values()))
        reader = EvaluationReader(batch_size=1, positions=self._positions, seed=self._seed)
        (part,) = reader.batches(split, {"": [0]})
        return part.batch
