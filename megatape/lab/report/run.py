"""A run of a report, and its events."""

from dataclasses import dataclass

import numpy as np

from megatape import imports
from megatape.config import Config
from megatape.data.shards.entries import Index
from megatape.run_folder import RunFolder

# Events at the start of a process, which record its environment.
STARTS = ("started", "resumed")


@dataclass(frozen=True)
class Event:
    """A line of events.jsonl.

    Attributes:
        time: Seconds since 1970.
        kind: Kind of the event, such as "checkpoint".
        step: Last step before the event.
        detail: Description.
        environment: Environment of a start, as text by name; empty if it was not recorded.
    """

    time: float
    kind: str
    step: int
    detail: str
    environment: dict[str, str]


@dataclass(frozen=True)
class Run:
    """The folder of a run, which may still be training.

    Attributes:
        name: Name of the run, unique in a report.
        folder: Paths of the run's files.
        config: Resolved configuration.
        metrics: Column of COLUMNS -> float64 [steps], by step. Values that were not recorded are NaN.
        selection: Selection of validation samples in the last evaluation (data/training/selection.py), empty before the first.
        part_losses: Validation losses by corpus and input, as far as the last evaluation recorded them.
        events: Events, in the order of their lines.
        data: Path -> index of each data directory that exists.
    """

    name: str
    folder: RunFolder
    config: Config
    metrics: dict[str, np.ndarray]
    selection: str
    part_losses: dict[str, float]
    events: list[Event]
    data: dict[str, Index]

    @property
    def last_step(self) -> int:
        """Number of the last recorded step, 0 before the first one."""
        steps = self.metrics["step"]
        if not steps.size:
            return 0
        return int(steps[-1])

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the last start, as text by name; empty for runs of earlier versions."""
        for event in reversed(self.events):
            if event.kind in STARTS:
                return event.environment
        return {}

    @property
    def evaluated(self) -> tuple[str, int, str]:
        """Data, number and selection of the validation samples. Runs with equal values have comparable losses."""
        return self.config.data.model_dump_json(), self.config.evaluation.samples, self.selection

    @property
    def unigram_entropy(self) -> float:
        """Entropy of the data's tokens by their frequencies, in nats per target. NaN without data, and for mixtures."""
        if self.config.data.mixture or not self.data:
            return np.nan
        return entropy(self.data[self.config.data.path])

    @property
    def missing_modules(self) -> list[str]:
        """Modules of the run that this process has not imported. The model cannot be built without them."""
        return imports.not_given(self.config.run.imports)

    def last(self, column: str) -> float:
        """Return the last recorded value of a column, NaN if it has none."""
        values = self.metrics[column]
        recorded = values[~np.isnan(values)]
        if not recorded.size:
            return np.nan
        return float(recorded[-1])

    @property
    def samples_left(self) -> int:
        """Number of samples in the remaining steps, by the present batch sizes."""
        consumed = self.config.batches.consumed
        return consumed(self.config.training.steps) - consumed(self.last_step)

    def samples(self, step: int) -> int:
        """Return the number of samples until a step, as recorded, or else by the present batch sizes."""
        is_recorded = ~np.isnan(self.metrics["samples"])
        if not is_recorded.any():
            return self.config.batches.consumed(step)
        steps = self.metrics["step"][is_recorded]
        samples = self.metrics["samples"][is_recorded]
        return int(np.interp(step, [0, *steps], [0, *samples]))


def entropy(index: Index) -> float:
    """Return the entropy of a data directory's tokens by their frequencies, in nats per target."""
    splits = index.answers or index.splits
    return splits["train"].unigram_entropy
