"""Results of the finished runs of a suite, read from the folders of the runs."""

from dataclasses import dataclass

from megatape.lab.study.suite.plan import Plan
from megatape.lab.study.suite.runs.experiment import Experiment
from megatape.lab.study.suite.scores.model_scores import Scores
from megatape.lab.study.suite.scores.record import Record

ScoresOf = dict[Experiment, dict[int, Scores]]  # experiment -> seed -> scores


@dataclass(frozen=True)
class SuiteResults:
    """Results of a suite.

    Attributes:
        plan: Plan of the suite.
        command: Command line of the user.
        records: Scores of the finished runs and of the baselines.
        seconds: Seconds of each finished run, by encoding.
        not_run: Phrase for each part that has not run.
        controls: Description of each experiment with a control.
    """

    plan: Plan
    command: str
    records: list[Record]
    seconds: dict[str, list[float]]
    not_run: list[str]
    controls: list[str]


def read_results(experiments: list[Experiment], plan: Plan, command: str) -> SuiteResults:
    """Read the results of the finished runs.

    Args:
        experiments: All experiments of the plan.
        plan: Plan of the suite.
        command: Command line of the user.
    """
    scores = {experiment: experiment.read_scores(plan.seed_range) for experiment in experiments}
    return SuiteResults(
        plan=plan,
        command=command,
        records=_records(scores),
        seconds=_seconds(scores),
        not_run=[*plan.left_out, *_diverged(experiments), *_missing(scores, plan)],
        controls=_controls(experiments),
    )


def _records(scores: ScoresOf) -> list[Record]:
    """Return the records of all finished runs and of the baselines."""
    records: list[Record] = []
    for by_seed in scores.values():
        for found in by_seed.values():
            records += found.records
    for folder in dict.fromkeys(experiment.folder for experiment in scores):
        if folder.data.exists():
            records += folder.read_baselines()
    return records


def _seconds(scores: ScoresOf) -> dict[str, list[float]]:
    """Return the seconds of the runs of each encoding."""
    seconds: dict[str, list[float]] = {}
    for experiment, by_seed in scores.items():
        of_encoding = seconds.setdefault(experiment.encoding, [])
        for found in by_seed.values():
            of_encoding.append(found.seconds)
    return seconds


def _diverged(experiments: list[Experiment]) -> list[str]:
    """Return a phrase for each learning rate that diverged."""
    phrases = []
    for experiment in experiments:
        for rate in experiment.read_search().diverged:
            phrases.append(f"{experiment.name}: learning rate {rate:g} (the weights diverged)")
    return phrases


def _missing(scores: ScoresOf, plan: Plan) -> list[str]:
    """Return a phrase for each experiment with seeds that have no scores."""
    phrases = []
    for experiment, by_seed in scores.items():
        seeds = [str(seed) for seed in plan.seed_range if seed not in by_seed]
        if seeds:
            phrases.append(f"{experiment.name}: seeds {', '.join(seeds)} (not run yet, or failed)")
    return phrases


def _controls(experiments: list[Experiment]) -> list[str]:
    """Describe the experiments with a control."""
    lines = []
    for experiment in experiments:
        variant = experiment.variant
        if variant.control and experiment.folder.data.exists():
            lines.append(f"{experiment.folder.task.name}: {variant.describe_control(experiment.load_base())}")
    return lines
