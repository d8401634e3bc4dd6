"""A run in a report, and its events."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from megatape import imports
from megatape.config import Config
from megatape.data.shards.entries import Index
from megatape.reliability.goodput.run_time import RunTime
from megatape.run_folder import RunFolder

# Events recorded when a process starts, with its environment.
STARTS = ("started", "resumed")


@dataclass(frozen=True)
class Event:
    """A line of events.jsonl.

    Attributes:
        time: Seconds since 1970.
        kind: Event kind, such as "checkpoint".
        step: Last step before the event.
        detail: Description.
        environment: Environment recorded at a start, as text by name. Empty if not recorded.
    """

    time: float
    kind: str
    step: int
    detail: str
    environment: dict[str, str]


class ValidationSamples(NamedTuple):
    """Samples used in a run's evaluations. Runs with equal values have comparable validation losses.

    Attributes:
        data: The configuration's data section, as JSON.
        num_samples: Number of samples.
        selection: Rule by which the samples were selected.
    """

    data: str
    num_samples: int
    selection: str


@dataclass(frozen=True)
class Run:
    """A run directory's content. The run may still be training.

    Attributes:
        name: Run name, unique in a report.
        folder: Paths of the run's files.
        config: Resolved configuration.
        metrics: Column (see COLUMNS in load.py) -> float64 [steps], by step. NaN if not recorded.
        selection: Rule by which the last evaluation selected samples (data/training/selection.py), empty before the first.
        part_losses: Validation losses by corpus and input, if the last evaluation recorded them.
        events: Events in the order of their lines.
        data: Path -> index of each existing data directory.
        time: Time of the run by part.
    """

    name: str
    folder: RunFolder
    config: Config
    metrics: dict[str, np.ndarray]
    selection: str
    part_losses: dict[str, float]
    events: list[Event]
    data: dict[str, Index]
    time: RunTime

    @property
    def last_step(self) -> int:
        """Last recorded step, 0 before the first."""
        steps = self.metrics["step"]
        if not steps.size:
            return 0
        return int(steps[-1])

    @property
    def environment(self) -> dict[str, str]:
        """Environment at the last start, as text by name. Empty for runs of earlier versions."""
        for event in reversed(self.events):
            if event.kind in STARTS:
                return event.environment
        return {}

    @property
    def evaluated(self) -> ValidationSamples:
        """Samples used in the run's evaluations."""
        return ValidationSamples(self.config.data.model_dump_json(), self.config.evaluation.samples, self.selection)

    @property
    def unigram_entropy(self) -> float:
        """Entropy of the data's token frequencies, in nats per target. NaN without data, and for mixtures."""
        if self.config.data.mixture or not self.data:
            return np.nan
        return entropy(self.data[self.config.data.path])

    @property
    def missing_modules(self) -> list[str]:
        """Modules that the run imported and this process did not. The model cannot be built without them."""
        return imports.not_given(self.config.run.imports)

    def last(self, column: str) -> float:
        """Return the last recorded value in a column, NaN if there is none."""
        values = self.metrics[column]
        recorded = values[~np.isnan(values)]
        if not recorded.size:
            return np.nan
        return float(recorded[-1])

    @property
    def samples_left(self) -> int:
        """Number of samples in the remaining steps, at the configured batch sizes."""
        consumed = self.config.batches.consumed
        return consumed(self.config.training.steps) - consumed(self.last_step)

    def samples(self, step: int) -> int:
        """Return the number of samples until a step, as recorded, or else at the configured batch sizes."""
        is_recorded = ~np.isnan(self.metrics["samples"])
        if not is_recorded.any():
            return self.config.batches.consumed(step)
        steps = self.metrics["step"][is_recorded]
        samples = self.metrics["samples"][is_recorded]
        return int(np.interp(step, [0, *steps], [0, *samples]))


def entropy(index: Index) -> float:
    """Return the entropy of a data directory's token frequencies, in nats per target."""
    splits = index.answers or index.splits
    return splits["train"].unigram_entropy
