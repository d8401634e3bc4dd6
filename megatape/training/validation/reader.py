"""Reads this rank's share of the validation data."""

from megatape.data.training.batch import Batch
from megatape.data.training.evaluation_reader import EvaluationReader
from megatape.data.training.positions import Positions
from megatape.data.training.run_data import RunData
from megatape.data.training.selection import Selection
from megatape.distributed.mesh import Axis
from megatape.errors import UserError
from megatape.training.validation.batches import SplitBatches, ValidationBatches


class ValidationReader:
    """Reader of a rank's share of the validation splits, and of the sample of the position view.

    Args:
        data: Data opened by this rank.
        positions: Position ids that the encoding gives the tokens of samples.
        micro_batch_size: Number of samples in a micro-batch.
        seed: Seed of random positions.
        axis: Ranks that read different samples.
        has_view: Whether the evaluation has a position view.
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
        """Read the selected samples of each split, all before any of them is used.

        Args:
            selection: Selection of the samples.

        Returns:
            The batches, or the reason why they cannot be read.
        """
        splits = {}
        viewed = None
        try:
            if self._has_view:
                viewed = self._read_viewed()
            for corpus in self._data.validation:
                splits[corpus] = self._read_split(corpus, selection)
        except (UserError, OSError) as error:
            return ValidationBatches({}, error=str(error))
        return ValidationBatches(splits, viewed)

    def _read_split(self, corpus: str, selection: Selection) -> SplitBatches:
        """Read the share of a corpus's split. Raises UserError or OSError."""
        split = self._data.validation[corpus]
        groups = self._data.evaluated[selection][corpus]
        reader = EvaluationReader(self._micro_batch_size, self._axis.rank, self._axis.size, self._positions, self._seed)
        return SplitBatches(list(groups), list(reader.batches(split, groups)))

    def _read_viewed(self) -> Batch:
        """Read the sample of the position view, the first one of the first split. The same on all ranks."""
        split = next(iter(self._data.validation.values()))
        reader = EvaluationReader(batch_size=1, positions=self._positions, seed=self._seed)
        (part,) = reader.batches(split, {"": [0]})
        return part.batch
