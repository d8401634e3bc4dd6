"""Trains the same model with several encodings and seeds, evaluates each, and compares the results.

OUT/tape/seed-1234/             a run of `megatape pretrain`, with its log.txt
    outcome.json                its results; outcome+yarn.json: the same with scaled frequencies
OUT/comparison.md, comparison.png
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from megatape.config import Config, load_config
from megatape.errors import UserError
from megatape.lab.study.comparison.measure import check_measurable, measure
from megatape.lab.study.comparison.report import report
from megatape.lab.study.comparison.variants import Variant, parse_variants
from megatape.lab.study.execution.measurement import Measurement
from megatape.lab.study.execution.run import Run
from megatape.lab.study.execution.study import Study
from megatape.lab.study.outcomes.curves import Row
from megatape.lab.study.outcomes.outcome import Outcome
from megatape.run_folder import RunFolder


@dataclass(frozen=True)
class Comparison:
    """Runs of a comparison: each variant with each seed.

    Attributes:
        file: Configuration.
        settings: Overrides of the configuration.
        variants: Variants to compare.
        seeds: Values of training.seed. With the same seed, all variants have the same samples in the same order, and weights of
            the same name have the same initial values.
        study: Folder and resources.
    """

    file: str
    settings: tuple[str, ...]
    variants: list[Variant]
    seeds: range
    study: Study

    def runs(self) -> list[Run[Outcome]]:
        """Return all runs, ordered by seed, so that every variant has results early.

        Raises:
            UserError: Two runs are the same model, or a run could not be measured.
        """
        sharing: dict[str, list[Variant]] = {}
        for variant in self.variants:
            sharing.setdefault(variant.trained, []).append(variant)
        runs = []
        for seed in self.seeds:
            runs_of_seed = [self._run(variants, seed) for variants in sharing.values()]
            _check_distinct(runs_of_seed, list(sharing))
            runs += runs_of_seed
        return runs

    def read_outcomes(self, variant: Variant) -> list[Outcome]:
        """Read the outcomes of a variant that exist."""
        outcomes = []
        for seed in self.seeds:
            path = self._folder(variant.trained, seed).outcome(variant.scaling)
            if path.exists():
                outcomes.append(Outcome.read(path))
        return outcomes

    def report(self) -> Iterator[str]:
        """Write the table and the plot of the outcomes that exist, and yield the table. Without outcomes, do nothing."""
        rows = []
        notes = []
        for variant in self.variants:
            outcomes = self.read_outcomes(variant)
            if outcomes:
                rows.append(Row(variant.label, outcomes))
            if variant.control:
                notes.append(variant.describe_control(self._config_of(variant)))
        if rows:
            yield report(rows, notes, self.study.command, self.study.out)

    def _run(self, variants: list[Variant], seed: int) -> Run[Outcome]:
        """Return the run of a seed that variants share, which differ only in their scaling."""
        # Their settings are equal.
        variant = variants[-1]
        folder = self._folder(variant.trained, seed)
        changes = variant.settings_for(self._config_of(variant))
        settings = [*self.settings, *changes, f"training.seed={seed}", f"run.directory={folder.directory}"]
        config = load_config(self.file, settings)
        measurements = []
        for each in variants:
            check_measurable(config, each.scaling)
            arguments = (str(folder.directory), each.scaling)
            measurements.append(Measurement(folder.outcome(each.scaling), measure, arguments))
        return Run(
            name=f"{variant.trained}, seed {seed}",
            config=config,
            train=self.study.pool.pretrain_command(self.file, settings),
            measurements=tuple(measurements),
            result=Outcome,
        )

    def _config_of(self, variant: Variant) -> Config:
        """Load the configuration of a variant, before the width of a control and the settings that differ between runs."""
        return load_config(self.file, [*self.settings, *variant.settings])

    def _folder(self, trained: str, seed: int) -> RunFolder:
        return RunFolder(self.study.out / trained.replace(":", "_") / f"seed-{seed}")


def compare(file: str, settings: Sequence[str], encodings: str, seeds: int, study: Study) -> Iterator[str]:
    """Execute the missing runs, and write the table and the plot.

    Args:
        file: Configuration.
        settings: Overrides of the configuration.
        encodings: Labels of variants with commas.
        seeds: Number of seeds, from training.seed upwards.
        study: Folder and resources.

    Yields:
        Messages about the progress, then the table.

    Raises:
        UserError: An argument or a run in the folder does not fit. No run has started.
        OSError: A file cannot be read or written.
        RunsFailed: Some runs failed; the others are complete.
    """
    base = load_config(file, settings)
    if base.model.scaling is not None:
        raise UserError(
            "model.scaling is set, but encodings are trained without it: remove it, and compare, for example, tape+yarn"
        )
    first_seed = base.training.seed
    comparison = Comparison(
        file=file,
        settings=tuple(settings),
        variants=parse_variants(encodings),
        seeds=range(first_seed, first_seed + seeds),
        study=study,
    )
    runs = comparison.runs()
    with study.begin() as execution:
        yield from execution.finish(runs)
        yield from comparison.report()
    execution.raise_failures()


def _check_distinct(runs: list[Run[Outcome]], labels: list[str]) -> None:
    """Raise UserError if two runs are the same model.

    Args:
        runs: Runs of a seed.
        labels: Label of each run's variant, without scaling.
    """
    label_of_model: dict[str, str] = {}
    for run, label in zip(runs, labels, strict=True):
        same = label_of_model.setdefault(run.config.model.model_dump_json(), label)
        if same != label:
            raise UserError(f"encodings: {same} and {label} are the same model: remove one of them")
