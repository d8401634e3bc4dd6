"""Repeats finished runs of a suite, and compares their results with the recorded ones.

The same code on the same machine repeats a run bit for bit. Elsewhere, rounding errors grow with every step, so a repeated run
may end as far from the recorded one as another seed would.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megatape.errors import UserError, flag
from megatape.lab.study.execution.study import Study
from megatape.lab.study.suite.plan import Plan
from megatape.lab.study.suite.runs.experiment import Experiment
from megatape.lab.study.suite.scores.task_result import SCORES, TaskResult
from megatape.run_folder import RunFolder

# Folder of the repeated runs, in the suite's folder.
REPEATED = "repeated"


@dataclass(frozen=True)
class Repetition:
    """A finished run to repeat.

    Attributes:
        experiment: Task and encoding.
        rate: Learning rate.
        seed: Seed.
        recorded: Recorded result.
        folder: Run directory of the repetition.
    """

    experiment: Experiment
    rate: float
    seed: int
    recorded: TaskResult
    folder: RunFolder

    @property
    def name(self) -> str:
        """Name in messages."""
        return f"{self.experiment.name}, rate {self.rate:g}, seed {self.seed}"

    def compare(self) -> str | None:
        """Return a line with the differences from the recorded result, or None if the run was not repeated."""
        path = self.folder.directory / SCORES
        if not path.exists():
            return None
        repeated = TaskResult.read(path)
        changes = _changed_origin(self.recorded.origin, repeated.origin)
        if self.recorded.engine != repeated.engine:
            changes.append(f"engine {self.recorded.engine}, now {repeated.engine}")
        differences = _differences(self.recorded, repeated)
        line = f"{self.name}: {'; '.join(differences) or 'equal'}"
        if changes:
            line = f"{line} ({'; '.join(changes)})"
        return line


def repeat(experiments: Sequence[Experiment], plan: Plan, study: Study, count: int) -> None:
    """Repeat some finished runs, and show a line for each with its differences from the recorded result.

    Args:
        experiments: Experiments of the suite.
        plan: Plan of the suite.
        study: Folder and resources.
        count: Number of runs to repeat, evenly spaced among the finished ones.

    Raises:
        UserError: No run is finished.
        RunsFailed: Some runs failed.
    """
    repetitions = _choose(experiments, plan, study.output, count)
    if not repetitions:
        raise UserError(f"{study.output} has no finished run that could be repeated: leave out {flag('repeat')} to train them")
    runs = []
    for repetition in repetitions:
        runs.append(repetition.experiment.run(study.pool, repetition.rate, repetition.seed, repetition.folder))
    with study.begin() as execution:
        execution.finish(runs)
    lines = []
    for repetition in repetitions:
        line = repetition.compare()
        if line is not None:
            lines.append(line)
    study.show("\n\n".join(lines))
    execution.raise_failures()


def _choose(experiments: Sequence[Experiment], plan: Plan, out: Path, count: int) -> list[Repetition]:
    """Return evenly spaced finished runs."""
    finished = []
    for experiment in experiments:
        rate = experiment.read_search().chosen
        for seed, recorded in experiment.read_results(plan.seed_range).items():
            assert rate is not None
            folder = RunFolder(out / REPEATED / experiment.run_directory(rate, seed))
            finished.append(Repetition(experiment, rate, seed, recorded, folder))
    count = min(count, len(finished))
    return [finished[index * len(finished) // count] for index in range(count)]


def _changed_origin(recorded: dict[str, str], repeated: dict[str, str]) -> list[str]:
    """Return a phrase for each version or number of threads that has changed."""
    changes = []
    for name, now in repeated.items():
        before = recorded.get(name, "not recorded")
        if before != now:
            changes.append(f"{name} {before}, now {now}")
    return changes


def _differences(recorded: TaskResult, repeated: TaskResult) -> list[str]:
    """Return a phrase for each different loss or score."""
    differences = []
    if repeated.validation_loss != recorded.validation_loss:
        ratio = repeated.validation_loss / recorded.validation_loss - 1
        differences.append(
            f"validation loss {repeated.validation_loss:.6g} instead of {recorded.validation_loss:.6g} ({ratio:+.2g} of it)"
        )
    scores = {record.split: record.score for record in recorded.records}
    for record in repeated.records:
        before = scores.get(record.split)
        if record.score is not None and before is not None and record.score != before:
            differences.append(f"{record.split} {100 * record.score:.1f}% instead of {100 * before:.1f}%")
    return differences
