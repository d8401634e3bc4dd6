"""Progress of a preparation: the sum over its units and passes."""

from megatape.data.prepare.preparation import Preparation
from megatape.data.prepare.progress import OnProgress, Progress, UnitPass, UnitProgress


class ProgressTotals:
    """Sums the progress of all units, and reports each new sum.

    Attributes:
        finished: Units finished before this command.
    """

    def __init__(self, preparation: Preparation, on_progress: OnProgress) -> None:
        units = preparation.units
        self._on_progress = on_progress
        self.finished = preparation.finished()
        finished_bytes = sum(units[number].num_bytes for number in self.finished)
        total_bytes = sum(unit.num_bytes for unit in units)
        num_passes = preparation.num_passes
        self._total = Progress(num_passes * finished_bytes, total_bytes=num_passes * total_bytes)
        # Latest progress by unit and pass.
        self._latest: dict[tuple[int, UnitPass], Progress] = {}

    def add(self, latest: UnitProgress) -> None:
        """Replace the earlier progress of the same pass over the same unit."""
        key = (latest.number, latest.unit_pass)
        before = self._latest.get(key, Progress(0))
        self._latest[key] = latest.progress
        sums = [total + new - old for total, new, old in zip(self._total, latest.progress, before, strict=True)]
        self._total = Progress(*sums)
        self._on_progress(self._total)
