"""Proves which samples a run has trained on, by comparing its recorded steps with the order of its data."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from megatape.config import load_recorded_config
from megatape.config.sections.batches import MAX_STEP_SAMPLES
from megatape.data.training.mixing.mixture import Mixture
from megatape.data.training.mixing.order import samples_digest
from megatape.data.training.run_data import open_data
from megatape.errors import UserError, marked_message
from megatape.run_folder import RunFolder, read_steps


@dataclass
class CorpusUsage:
    """Samples that a run has consumed from one corpus.

    Attributes:
        size: Samples in the corpus.
        taken: Samples consumed in all epochs.
        seen: bool [samples], whether each sample was used in the current epoch.
    """

    size: int
    taken: int = 0
    seen: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))

    def take(self, index: int) -> None:
        """Record a sample. Raise a UserError if the current epoch already has it."""
        if self.taken % self.size == 0:
            self.seen = np.zeros(self.size, bool)
        if self.seen[index]:
            raise UserError(f"sample {index:,} for the second time in epoch {self.taken // self.size + 1}")
        self.seen[index] = True
        self.taken += 1

    def describe(self) -> str:
        """Describe the epochs."""
        complete, rest = divmod(self.taken, self.size)
        parts = []
        if complete:
            parts.append(f"epochs 1 to {complete} complete, each sample of {self.size:,} once in each")
        if rest:
            parts.append(f"{rest:,} of {self.size:,} samples, each once at most, in epoch {complete + 1}")
        return "; ".join(parts) or "no sample"


@dataclass
class SkippedSteps:
    """Consecutive steps skipped for the same reason, with their range of samples."""

    first_step: int
    last_step: int
    first_sample: int
    last_sample: int
    reason: str

    def describe(self) -> str:
        """Describe the steps and the reason."""
        steps = f"steps {self.first_step:,} to {self.last_step:,}"
        samples = f"samples {self.first_sample:,} to {self.last_sample:,}"
        return f"{steps}, {samples}: {self.reason}"


@dataclass(frozen=True)
class RecordedStep:
    """The part of a line of metrics.jsonl that the ledger proves.

    Attributes:
        step: Step number.
        samples: Samples consumed so far, an integer unless the file was changed.
        digest: Digest of the step's samples, None if none was recorded.
        skip_reason: Reason for skipping the step, None if it was not skipped.
    """

    step: int
    samples: Any
    digest: int | None
    skip_reason: str | None

    @classmethod
    def of_entry(cls, entry: dict[str, Any]) -> Self:
        """Return the step in a JSON object."""
        return cls(entry["step"], entry.get("samples"), entry.get("digest"), entry.get("skipped") or None)


class Ledger:
    """Checks the recorded steps of a run one after the other.

    Args:
        metrics: metrics.jsonl, for messages.
        data: Training data.

    Attributes:
        step: Last checked step.
        num_samples: Samples consumed so far.
        num_digests: Steps with a recorded digest.
        corpora: Consumed samples by corpus.
        skipped: Skipped steps.
    """

    def __init__(self, metrics: Path, data: Mixture) -> None:
        self.step = 0
        self.num_samples = 0
        self.num_digests = 0
        self.corpora = {name: CorpusUsage(corpus.num_samples) for name, corpus in data.corpora.items()}
        self.skipped: list[SkippedSteps] = []
        self._metrics = metrics
        self._order = data.order

    def check(self, recorded: RecordedStep) -> None:
        """Check the next recorded step.

        Raises:
            UserError: Steps are missing, samples do not follow the previous step's, a sample repeats within an epoch, or the
                digest differs.
        """
        step = recorded.step
        if step != self.step + 1:
            elsewhere = ""
            if self.step == 0:
                elsewhere = ", or are in another folder, from whose checkpoint the run continued"
            raise UserError(f"{self._metrics}: step {step} follows step {self.step}: lines were lost{elsewhere}")

        first = self.num_samples
        end = recorded.samples
        if type(end) is not int or not 0 <= end - first <= MAX_STEP_SAMPLES:
            raise UserError(f"{self._metrics}: step {step} ends with sample {end!r} after {first:,}: it was changed")
        self.step = step
        self.num_samples = end

        description = f"step {step}, samples {first:,} to {end - 1:,}"
        locations = [self._order.locate(number) for number in range(first, end)]
        for location in locations:
            try:
                self.corpora[location.corpus].take(location.sample_index)
            except UserError as error:
                raise UserError(f"{description}: {location.corpus} {marked_message(error)}") from None

        if recorded.digest is not None:
            digest = samples_digest(locations)
            if recorded.digest != digest:
                raise UserError(
                    f"{description}: the run has recorded the digest {recorded.digest}, these data give {digest}: other data, "
                    "or another version of MegaTAPE, are in place of those that it was trained with"
                )
            self.num_digests += 1

        if recorded.skip_reason is not None:
            self._add_skipped(first, recorded.skip_reason)

    def _add_skipped(self, first_sample: int, reason: str) -> None:
        """Record the last step as skipped."""
        last_sample = self.num_samples - 1
        if self.skipped:
            previous = self.skipped[-1]
            if previous.last_step == self.step - 1 and previous.reason == reason:
                previous.last_step = self.step
                previous.last_sample = last_sample
                return
        self.skipped.append(SkippedSteps(self.step, self.step, first_sample, last_sample, reason))

    def report(self) -> Iterator[str]:
        """Yield the lines of the report."""
        yield f"steps:     1 to {self.step:,}, samples 0 to {self.num_samples - 1:,}, none missing"
        yield f"digests:   {self.num_digests:,} recorded, all of them those of the samples that the order gives"
        for name, usage in self.corpora.items():
            label = "data:"
            if name:
                label = f"corpus {name}:"
            yield f"{label:<10} {usage.describe()}"
        for skipped in self.skipped:
            yield f"skipped:   {skipped.describe()}"
        if not self.skipped:
            yield "skipped:   none"


def prove(directory: Path, overrides: Sequence[str] = ()) -> list[str]:
    """Check all recorded steps of a run against the order of its data, and return the lines of a report.

    Args:
        directory: Run directory.
        overrides: Changes to its configuration, as `section.key=value`.

    Raises:
        FileNotFoundError: A data file is missing.
        UserError: The directory holds no run, or a step differs from the order.
    """
    folder = RunFolder(directory)
    if not folder.config.is_file():
        raise UserError(f"{directory}: give a run directory, run.directory of its configuration")
    config = load_recorded_config(folder.config, overrides)
    ledger = Ledger(folder.metrics, open_data(config.data, config.training, config.evaluation, config.model.vocab_size).train)
    for entry in read_steps(folder.metrics):
        ledger.check(RecordedStep.of_entry(entry))
    if not ledger.step:
        raise UserError(f"{folder.metrics}: no step is recorded")
    return list(ledger.report())
