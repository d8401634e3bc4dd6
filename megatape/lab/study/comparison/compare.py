"""Trains the same model with several encodings and seeds, evaluates each, and compares the results.

OUT/tape/seed-1234/             a run of `megatape pretrain`, with its log.txt
    outcome.json                its result; outcome+yarn.json: its result with scaled frequencies
    evaluations/                results of `megatape evaluate`, a folder for each task with its options
OUT/comparison.md, comparison.png
"""

from collections.abc import Sequence
from dataclasses import dataclass

from megatape.config import Config, SettingValues, as_overrides, load_config
from megatape.errors import UserError, flag
from megatape.lab.study.comparison.measure import check_measurable, measure_run
from megatape.lab.study.comparison.report import ScoredVariant, report
from megatape.lab.study.execution.measurement import Measurement
from megatape.lab.study.execution.run import Run
from megatape.lab.study.execution.study import Study
from megatape.lab.study.execution.task_evaluation import TaskCommand, TaskEvaluation
from megatape.lab.study.results.plots import Row
from megatape.lab.study.results.text_result import TextResult
from megatape.lab.study.variants import EncodingVariant, folder_name, parse_variants
from megatape.run_folder import RunFolder


@dataclass(frozen=True)
class Comparison:
    """Runs of a comparison: each variant with each seed.

    Attributes:
        file: Configuration file.
        overrides: The user's values of --set.
        variants: Variants to compare.
        seeds: Values of training.seed. Variants with the same seed see the same samples in the same order, and weights with
            the same name start with the same values.
        study: Folder and resources.
        tasks: Tasks to evaluate every trained model on, without scaling.
    """

    file: str
    overrides: tuple[str, ...]
    variants: list[EncodingVariant]
    seeds: range
    study: Study
    tasks: tuple[TaskCommand, ...] = ()

    def runs(self) -> list[Run[TextResult]]:
        """Return all runs, ordered by seed, so that every variant has results early.

        Raises:
            UserError: Two runs are the same model, or a run could not be measured.
        """
        sharing: dict[str, list[EncodingVariant]] = {}
        for variant in self.variants:
            sharing.setdefault(variant.trained, []).append(variant)
        runs = []
        for seed in self.seeds:
            runs_of_seed = [self._run(variants, seed) for variants in sharing.values()]
            _check_distinct(runs_of_seed, list(sharing))
            runs += runs_of_seed
        return runs

    def read_results(self, variant: EncodingVariant) -> list[TextResult]:
        """Read the existing results of a variant."""
        results = []
        for seed in self.seeds:
            path = self._folder(variant.trained, seed).outcome(variant.scaling)
            if path.exists():
                results.append(TextResult.read(path))
        return results

    def read_scores(self, task: TaskCommand) -> list[ScoredVariant]:
        """Read the existing results of a task, for each variant that has some."""
        scored = []
        for variant in self.variants:
            if variant.scaling is not None:
                # Tasks evaluate models as they were trained.
                continue
            columns_by_seed = {}
            for seed in self.seeds:
                evaluation = self._evaluation(task, self._folder(variant.trained, seed), self._config_of(variant))
                if evaluation.is_done():
                    columns_by_seed[seed] = evaluation.read_columns()
            if columns_by_seed:
                scored.append(ScoredVariant(variant.label, columns_by_seed))
        return scored

    def report(self) -> None:
        """Write the table and the plot of the existing results, and show the table. Without results, do nothing."""
        rows = []
        notes = []
        for variant in self.variants:
            results = self.read_results(variant)
            if results:
                rows.append(Row(variant.label, results))
            if variant.control:
                notes.append(variant.describe_control(self._config_of(variant)))
        scores = {task.title: self.read_scores(task) for task in self.tasks}
        if rows:
            self.study.show(report(rows, scores, notes, self.study.command, self.study.output))

    def _run(self, variants: list[EncodingVariant], seed: int) -> Run[TextResult]:
        """Return the run of a seed, shared by variants that differ only in their scaling."""
        # The variants have the same overrides.
        variant = variants[-1]
        folder = self._folder(variant.trained, seed)
        settings: SettingValues = {"training.seed": seed, "run.directory": str(folder.directory)}
        variant_overrides = variant.overrides_for(self._config_of(variant))
        overrides = [*self.overrides, *variant_overrides, *as_overrides(settings)]
        config = load_config(self.file, overrides)
        measurements = []
        for each in variants:
            check_measurable(config, each.scaling)
            arguments = (str(folder.directory), each.scaling)
            measurements.append(Measurement(folder.outcome(each.scaling), measure_run, arguments))
        return Run(
            name=f"{variant.trained}, seed {seed}",
            config=config,
            train=self.study.pool.pretrain_command(self.file, overrides),
            measurements=tuple(measurements),
            result=TextResult,
            evaluations=tuple(self._evaluation(task, folder, config) for task in self.tasks),
        )

    def _evaluation(self, task: TaskCommand, folder: RunFolder, config: Config) -> TaskEvaluation:
        """Return the evaluation of a run's last checkpoint."""
        checkpoint = folder.checkpoint(config.training.steps)
        output = folder.directory / "evaluations" / task.folder_name
        words = self.study.pool.evaluate_command(task, checkpoint, output)
        return TaskEvaluation.of(task, checkpoint, output, words)

    def _config_of(self, variant: EncodingVariant) -> Config:
        """Load the configuration of a variant, without the width of a control and the settings that differ between runs."""
        return _config_of(self.file, self.overrides, variant)

    def _folder(self, trained: str, seed: int) -> RunFolder:
        return RunFolder(self.study.output / folder_name(trained) / f"seed-{seed}")


def compare(
    file: str,
    overrides: Sequence[str],
    encodings: str,
    seeds: int,
    study: Study,
    tasks: Sequence[TaskCommand] = (),
) -> None:
    """Execute the missing runs, then write table and plot, and show the table.

    Args:
        file: Configuration file.
        overrides: Values of --set.
        encodings: Variant labels, separated by commas.
        seeds: Number of seeds, counting up from training.seed.
        study: Folder and resources.
        tasks: Tasks to evaluate every trained model on.

    Raises:
        UserError: An argument or a run in the folder does not fit. No run has started.
        OSError: A file cannot be read or written.
        RunsFailed: Some runs failed; the others are complete.
    """
    base = _load_base(file, overrides)
    first_seed = base.training.seed
    comparison = Comparison(
        file=file,
        overrides=tuple(overrides),
        variants=parse_variants(encodings),
        seeds=range(first_seed, first_seed + seeds),
        study=study,
        tasks=tuple(tasks),
    )
    runs = comparison.runs()
    with study.begin() as execution:
        execution.finish(runs)
        comparison.report()
    execution.raise_failures()


def configs_by_label(file: str, overrides: Sequence[str], encodings: str) -> dict[str, Config]:
    """Return the configuration of each model that `compare` would train, without reading data.

    Args:
        file: Configuration file.
        overrides: Values of --set.
        encodings: Variant labels, separated by commas.

    Returns:
        Label without scaling -> configuration.

    Raises:
        UserError: An argument does not fit.
    """
    _load_base(file, overrides)
    configs = {}
    for variant in parse_variants(encodings):
        variant_overrides = variant.overrides_for(_config_of(file, overrides, variant))
        configs[variant.trained] = load_config(file, [*overrides, *variant_overrides])
    return configs


def _config_of(file: str, overrides: Sequence[str], variant: EncodingVariant) -> Config:
    """Load the configuration of a variant, without the width of a control."""
    return load_config(file, [*overrides, *variant.overrides])


def _load_base(file: str, overrides: Sequence[str]) -> Config:
    """Load the configuration of a comparison. Raises UserError if it scales frequencies."""
    base = load_config(file, overrides)
    if base.model.scaling is not None:
        raise UserError(
            "model.scaling is set, but encodings are trained without it: remove it, and compare, for example, tape+yarn"
        )
    return base


def _check_distinct(runs: list[Run[TextResult]], labels: list[str]) -> None:
    """Raise UserError if two runs are the same model.

    Args:
        runs: Runs of a seed.
        labels: Variant label of each run, without scaling.
    """
    label_of_model: dict[str, str] = {}
    for run, label in zip(runs, labels, strict=True):
        same = label_of_model.setdefault(run.config.model.model_dump_json(), label)
        if same != label:
            raise UserError(f"{flag('encodings')}: {same} and {label} are the same model: remove one of them")
