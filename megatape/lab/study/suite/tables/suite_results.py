"""Results of a suite's finished runs, read from their folders."""

from dataclasses import dataclass

from megatape.lab.study.suite.plan import Plan
from megatape.lab.study.suite.runs.experiment import Experiment
from megatape.lab.study.suite.scores.record import Record
from megatape.lab.study.suite.scores.task_result import TaskResult


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
    """

    plan: Plan
    command: str
    records: list[Record]
    seconds: dict[str, list[float]]
    not_run: list[str]
    controls: list[str]


@dataclass(frozen=True)
class ExperimentResults:
    """Results of an experiment's finished runs, by seed."""

    experiment: Experiment
    by_seed: dict[int, TaskResult]


def read_results(experiments: list[Experiment], plan: Plan, command: str) -> SuiteResults:
    """Read the results of the finished runs.

    Args:
        experiments: All planned experiments.
        plan: Suite plan.
        command: The user's command line.
    """
    finished = []
    for experiment in experiments:
        finished.append(ExperimentResults(experiment, experiment.read_results(plan.seed_range)))
    return SuiteResults(
        plan=plan,
        command=command,
        records=_records(finished),
        seconds=_seconds(finished),
        not_run=[*plan.left_out, *_diverged(experiments), *_missing(finished, plan)],
        controls=_controls(experiments),
    )


def _records(finished: list[ExperimentResults]) -> list[Record]:
    """Return the records of the runs, then those of the baselines."""
    records: list[Record] = []
    for results in finished:
        for result in results.by_seed.values():
            records += result.records
    for folder in dict.fromkeys(results.experiment.folder for results in finished):
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
        if variant.control and experiment.folder.data.exists():
            lines.append(f"{experiment.folder.task.name}: {variant.describe_control(experiment.load_base())}")
    return lines
