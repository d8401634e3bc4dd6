"""Results of a suite's finished runs, read from their folders."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from megatape.lab.study.execution.engines import Engine
from megatape.lab.study.suite.analysis.difference_tests import DIFFERENCE_TESTS
from megatape.lab.study.suite.analysis.summary import Summary
from megatape.lab.study.suite.design import Design
from megatape.lab.study.suite.plan import Plan
from megatape.lab.study.suite.runs.experiment import Experiment
from megatape.lab.study.suite.scores.record import Record
from megatape.lab.study.suite.scores.task_result import TaskResult
from megatape.utils.text.units import plural


@dataclass(frozen=True)
class SuiteResults:
    """Results of a suite.

    Attributes:
        plan: Suite plan.
        command: The user's command line.
        records: Records of finished runs and baselines.
        seconds: Seconds of each finished run, by encoding.
        not_run: Phrase for each missing part.
        controls: Description of each experiment with a control.
        num_runs: Number of finished runs by engine.
        design: Design that the suite follows, None if it has none.
    """

    plan: Plan
    command: str
    records: list[Record]
    seconds: dict[str, list[float]]
    not_run: list[str]
    controls: list[str]
    num_runs: Counter[Engine] = field(default_factory=Counter)
    design: Design | None = None

    @cached_property
    def summary(self) -> Summary:
        """Scores with their statistics."""
        return Summary(self.records, DIFFERENCE_TESTS[self.plan.test])

    @property
    def head(self) -> list[str]:
        """Lines above the tables: design, engines and controls, each if there is one."""
        lines = []
        if self.design is not None:
            lines.append(self.design.describe())
        return [*lines, *self.engines, *self.controls]

    @property
    def engines(self) -> list[str]:
        """A line naming the engines of the finished runs; no line without runs."""
        if not self.num_runs:
            return []
        parts = [f"{plural(count, 'run')} by `{engine}`" for engine, count in sorted(self.num_runs.items())]
        return [f"Engine: {', '.join(parts)}."]


@dataclass(frozen=True)
class ExperimentResults:
    """Results of an experiment's finished runs, by seed."""

    experiment: Experiment
    by_seed: dict[int, TaskResult]


def read_results(experiments: list[Experiment], plan: Plan, command: str, design: Design | None = None) -> SuiteResults:
    """Read the results of the finished runs.

    Args:
        experiments: All planned experiments.
        plan: Suite plan.
        command: The user's command line.
        design: Design that the suite follows.
    """
    finished = []
    for experiment in experiments:
        finished.append(ExperimentResults(experiment, experiment.read_results(plan.seed_range)))
    return SuiteResults(
        plan=plan,
        command=command,
        records=_records(finished),
        seconds=_seconds(finished),
        not_run=[*plan.left_out, *_diverged(experiments), *_at_an_end(experiments), *_missing(finished, plan)],
        controls=_controls(experiments),
        num_runs=Counter(result.engine for results in finished for result in results.by_seed.values()),
        design=design,
    )


def _records(finished: list[ExperimentResults]) -> list[Record]:
    """Return the records of the runs, then those of the baselines."""
    records: list[Record] = []
    for results in finished:
        for result in results.by_seed.values():
            records += result.records
    for folder in dict.fromkeys(results.experiment.task_folder for results in finished):
        if folder.data.exists():
            records += folder.read_baselines()
    return records


def _seconds(finished: list[ExperimentResults]) -> dict[str, list[float]]:
    """Return the seconds of each run by encoding."""
    seconds: dict[str, list[float]] = {}
    for results in finished:
        encoding_seconds = seconds.setdefault(results.experiment.encoding, [])
        encoding_seconds += [result.seconds for result in results.by_seed.values()]
    return seconds


def _diverged(experiments: list[Experiment]) -> list[str]:
    """Return a phrase for each diverged learning rate."""
    phrases = []
    for experiment in experiments:
        for rate in experiment.read_search().diverged:
            phrases.append(f"{experiment.name}: learning rate {rate:g} (the weights diverged)")
    return phrases


def _at_an_end(experiments: list[Experiment]) -> list[str]:
    """Return a phrase for each experiment whose chosen learning rate has no neighbor on one side."""
    phrases = []
    for experiment in experiments:
        search = experiment.read_search()
        if search.chosen is not None and not search.is_bracketed:
            phrases.append(f"{experiment.name}: learning rates beyond {search.chosen:g}, the best of those tried")
    return phrases


def _missing(finished: list[ExperimentResults], plan: Plan) -> list[str]:
    """Return a phrase for each experiment with seeds lacking results."""
    phrases = []
    for results in finished:
        seeds = [str(seed) for seed in plan.seed_range if seed not in results.by_seed]
        if seeds:
            phrases.append(f"{results.experiment.name}: seeds {', '.join(seeds)} (not run yet, or failed)")
    return phrases


def _controls(experiments: list[Experiment]) -> list[str]:
    """Describe the experiments with a control."""
    lines = []
    for experiment in experiments:
        variant = experiment.variant
        if variant.control and experiment.task_folder.data.exists():
            lines.append(f"{experiment.task_folder.task.name}: {variant.describe_control(experiment.load_base())}")
    return lines
