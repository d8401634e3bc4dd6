"""Files of a suite's results: all scores, the tables, and the page."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from megatape.lab.study.execution.lock import locked_study
from megatape.lab.study.suite.plan import Plan
from megatape.lab.study.suite.runs.experiment import Experiment
from megatape.lab.study.suite.scores.model_scores import Scores
from megatape.lab.study.suite.scores.record import Record
from megatape.lab.study.suite.scores.record_files import write_records
from megatape.lab.study.suite.tables.sections import summarize

RESULTS = "results.jsonl"
TABLES = "suite.md"
PAGE = "suite.html"

ScoresOf = dict[Experiment, dict[int, Scores]]  # experiment -> seed -> scores
WritePage = Callable[[list[Record], list[str], Plan, dict[str, list[float]], str, Path], None]


class ResultFiles:
    """Writes the results of the finished runs of a suite."""

    def __init__(
        self,
        experiments: list[Experiment],
        plan: Plan,
        out: Path,
        command: str,
        write_page: WritePage,
    ) -> None:
        """See `suite` in run.py."""
        self._experiments = experiments
        self._plan = plan
        self._out = out
        self._command = command
        self._write_page = write_page

    def write(self, lock_folder: bool) -> str:
        """Write the files, and return the tables.

        Args:
            lock_folder: Whether to lock the folder of the suite, so that one task of an array job writes at a time.
        """
        lock: AbstractContextManager[object] = nullcontext()
        if lock_folder:
            lock = locked_study(self._out, wait=True)
        with lock:
            return self._write()

    def _write(self) -> str:
        scores = {experiment: experiment.scores(self._plan.seed_range) for experiment in self._experiments}
        records = self._records(scores)
        not_run = [*self._plan.left_out, *self._diverged(), *self._missing(scores)]
        text = "\n\n".join([f"    {self._command}", *self._controls(), summarize(records, not_run)])

        results = self._out / RESULTS
        tables = self._out / TABLES
        page = self._out / PAGE
        write_records(results, records)
        tables.write_text(text + "\n", encoding="utf-8")
        self._write_page(records, not_run, self._plan, _seconds(scores), self._command, page)
        return f"{text}\n\nwrote {results}, {tables}, {page}"

    def _records(self, scores: ScoresOf) -> list[Record]:
        """Return the records of all finished runs and of the baselines."""
        records: list[Record] = []
        for by_seed in scores.values():
            for found in by_seed.values():
                records += found.records
        for folder in dict.fromkeys(experiment.folder for experiment in self._experiments):
            if folder.data.exists():
                records += folder.baselines()
        return records

    def _controls(self) -> list[str]:
        """Describe the experiments with a control."""
        lines = []
        for experiment in self._experiments:
            variant = experiment.variant
            if variant.control and experiment.folder.data.exists():
                lines.append(f"{experiment.folder.task.name}: {variant.describe_control(experiment.base)}")
        return lines

    def _diverged(self) -> list[str]:
        """Return a phrase for each learning rate that diverged."""
        phrases = []
        for experiment in self._experiments:
            for rate in experiment.diverged:
                phrases.append(f"{experiment.name}: learning rate {rate:g} (the weights diverged)")
        return phrases

    def _missing(self, scores: ScoresOf) -> list[str]:
        """Return a phrase for each experiment with seeds that have no scores."""
        phrases = []
        for experiment, by_seed in scores.items():
            seeds = [str(seed) for seed in self._plan.seed_range if seed not in by_seed]
            if seeds:
                phrases.append(f"{experiment.name}: seeds {', '.join(seeds)} (not run yet, or failed)")
        return phrases


def _seconds(scores: ScoresOf) -> dict[str, list[float]]:
    """Return the seconds of the runs of each encoding."""
    seconds: dict[str, list[float]] = {}
    for experiment, by_seed in scores.items():
        of_encoding = seconds.setdefault(experiment.encoding, [])
        for found in by_seed.values():
            of_encoding.append(found.seconds)
    return seconds
