"""Which samples a run has trained on: every step's, by the order that its data give, and as the run has recorded them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from megatape.checkpoint.reader import MAX_STEP_SAMPLES
from megatape.config import load_recorded_config
from megatape.data.training.mixture import open_data
from megatape.data.training.order import SampleOrder, samples_digest
from megatape.errors import UserError
from megatape.run_folder import RunFolder, read_steps


def check_order(origin: Path, state: dict[str, Any], order: SampleOrder) -> None:
    """Raise UserError if the order of samples is not that in which the last step before the checkpoint `origin` took them."""
    last = state.get("last_step")
    if not last:  # of an earlier version
        return
    found = order.digest(range(last["first"], last["last"] + 1))
    if found != last["digest"]:
        raise UserError(
            f"{origin}: samples {last['first']:,} to {last['last']:,}, of its last step, had the digest {last['digest']}; this "
            f"version of MegaTAPE would take others there ({found}), so the run would see some samples twice and some never: "
            "continue with the version that wrote the checkpoint"
        )


@dataclass
class CorpusUsage:
    """What a run has taken of one corpus. seen: of each of its samples, whether this epoch has had it."""

    size: int
    taken: int = 0
    seen: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))

    def take(self, index: int) -> None:
        """Note a sample. Raises UserError if this epoch has had it; so an epoch of `size` samples has each once."""
        if self.taken % self.size == 0:
            self.seen = np.zeros(self.size, bool)
        if self.seen[index]:
            raise UserError(f"sample {index:,} for the second time in epoch {self.taken // self.size + 1}")
        self.seen[index] = True
        self.taken += 1

    def describe(self) -> str:
        """Epochs, in words."""
        whole, part = divmod(self.taken, self.size)
        begun = f"{part:,} of {self.size:,} samples, each once at most, in epoch {whole + 1}" if part else ""
        done = f"epochs 1 to {whole} complete, each sample of {self.size:,} once in each" if whole else ""
        return "; ".join(filter(None, (done, begun))) or "no sample"


def prove(directory: Path, overrides: Sequence[str] = ()) -> Iterator[str]:
    """Follow all recorded steps of a run through the order that its data give; yields lines of a report.

    Raises FileNotFoundError or UserError if the folder holds no run, and UserError at the first step that is missing, whose
    samples do not follow those of the step before, whose digest is another, or which has a sample for the second time in an
    epoch.
    """
    folder = RunFolder(directory)
    if not folder.config.is_file():
        raise UserError(f"{directory}: give the folder of a run, run.directory of its configuration")
    config = load_recorded_config(folder.config, overrides)
    data = open_data(config).train
    corpora = {name: CorpusUsage(corpus.num_samples) for name, corpus in data.corpora.items()}
    left_out: list[tuple[int, int, int, int, str]] = []  # steps and samples, first and last of each, and why
    step = unrecorded = 0
    consumed: Any = 0  # samples until then, as the file says
    for entry in read_steps(folder.metrics):
        number = entry["step"]
        if number != step + 1:
            elsewhere = "" if step else ", or are in another folder, from whose checkpoint the run continued"
            raise UserError(f"{folder.metrics}: step {number} follows step {step}: lines were lost{elsewhere}")
        first = consumed
        step = number
        consumed = entry.get("samples")
        if type(consumed) is not int or not 0 <= consumed - first < MAX_STEP_SAMPLES:
            raise UserError(f"{folder.metrics}: step {step} ends with sample {consumed!r} after {first:,}: it was changed")
        locations = [data.order.locate(place) for place in range(first, consumed)]
        for location in locations:
            try:
                corpora[location.corpus].take(location.sample_index)
            except ValueError as error:
                samples = f"step {step}, samples {first:,} to {consumed - 1:,}"
                raise UserError(f"{samples}: {location.corpus} {error}") from None
        recorded = entry.get("digest")
        found = samples_digest(locations)
        if recorded is None:
            unrecorded += 1
        elif recorded != found:
            raise UserError(
                f"step {step}, samples {first:,} to {consumed - 1:,}: the run has recorded the digest {recorded}, these data "
                f"give {found}: other data, or another version of MegaTAPE, are in place of those that it was trained with"
            )
        if why := entry.get("skipped"):
            if left_out and left_out[-1][1] == step - 1 and left_out[-1][4] == why:
                left_out[-1] = (left_out[-1][0], step, left_out[-1][2], consumed - 1, why)
            else:
                left_out.append((step, step, first, consumed - 1, why))
    if not step:
        raise UserError(f"{folder.metrics}: no step is recorded")
    yield f"steps:     1 to {step:,}, samples 0 to {consumed - 1:,}, none missing"
    yield f"digests:   {step - unrecorded:,} recorded, all of them those of the samples that the order gives"
    for name, taken in corpora.items():
        yield f"{f'corpus {name}:' if name else 'data:':<10} {taken.describe()}"
    for begin, end, first, last, why in left_out:
        yield f"left out:  steps {begin:,} to {end:,}, samples {first:,} to {last:,}: {why}"
    if not left_out:
        yield "left out:  nothing"
