"""Trains and scores a small model for each synthetic task, encoding and seed.

OUT/data/TASK/                          the task's data directory
OUT/config/TASK.json                    the configuration that its runs share
OUT/baselines/TASK.jsonl                scores of its baselines
OUT/TASK/ENCODING/rate-0.001/seed-1/    a run of `megatape pretrain`, with its log.txt; seed-0 is for the choice of the rate
    scores.json                         its scores
OUT/plan.json                           the plan of --dry-run
OUT/results.jsonl                       all scores but those of seed 0
OUT/suite.md, suite.html                their tables, and a page with pictures
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from megatape.config import Config, load_config
from megatape.data.shards.index import load_index
from megatape.data.synthetic.folder import check_folder, write_task
from megatape.data.synthetic.task import VALIDATION, SyntheticTask
from megatape.errors import UserError
from megatape.lab.processes import interruptible
from megatape.lab.study.lock import locked_study
from megatape.lab.study.pool import RunPool
from megatape.lab.study.run import DIVERGED, Run, check_all
from megatape.lab.study.suite.measure import baseline_records, measure
from megatape.lab.study.suite.plan import SIZES, Plan, Sizing
from megatape.lab.study.suite.records import SCORES, Record, Scores, read_records, write_records
from megatape.lab.study.suite.table import summarize
from megatape.lab.study.variants import Variant, parse_variants
from megatape.registry import ENCODINGS
from megatape.run_folder import RunFolder
from megatape.utils.files import json_content, write_atomically

TUNING_SEED = 0  # of the runs among which the learning rate is chosen; those of the results are 1, 2, ...


@dataclass(frozen=True)
class TaskFolder:
    """What all encodings of a task share in the suite's folder `out`. sizing: of models and training."""

    out: Path
    task: SyntheticTask
    sizing: Sizing = field(hash=False)

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.out / "data" / self.task.name

    @property
    def config(self) -> Path:
        """The configuration of all runs, but for encoding, seed, learning rate and folder."""
        return self.out / "config" / f"{self.task.name}.json"

    def check(self) -> None:
        """Raise UserError if there is data of another definition or size."""
        if self.data.exists():
            check_folder(self.task, self.sizing.written(self.task), self.data)

    def prepare(self) -> None:
        """Write data and configuration."""
        if not self.data.exists():
            try:
                write_task(self.task, self.sizing.written(self.task), self.data)
            except FileExistsError:  # another machine was faster
                self.check()
        raw = self.sizing.config(self.task, str(self.data), load_index(self.data).tokenizer.vocab_size)
        self.config.parent.mkdir(exist_ok=True)
        write_atomically(self.config, json_content(raw, str(self.config), indent=1) + b"\n")

    def baselines(self) -> list[Record]:
        """Of the task, scored once."""
        path = self.out / "baselines" / f"{self.task.name}.jsonl"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            write_records(path, baseline_records(self.task, self.sizing.test))
        return read_records(path)


@dataclass(frozen=True)
class Experiment:
    """A task and a model.

    encoding: label of its variant. rates: the learning rates of which one is chosen; one alone is not tried but taken.
    """

    folder: TaskFolder
    encoding: str
    rates: tuple[float, ...]

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.folder.task.name}, {self.encoding}"

    @property
    def directory(self) -> Path:
        """Of all its runs."""
        return self.folder.out / self.folder.task.name / self.encoding.replace(":", "_")

    @property
    def variant(self) -> Variant:
        """Of the models."""
        return parse_variants(self.encoding)[0]

    @property
    def base(self) -> Config:
        """The configuration but for a control's width, and for what differs between runs."""
        return load_config(self.folder.config, [*self.variant.settings, f"run.directory={self.directory}"])

    def tuning(self, pool: RunPool) -> list[Run[Scores]]:
        """A run for each learning rate, scored on the validation split."""
        if len(self.rates) == 1:
            return []
        open_rates = [rate for rate in self.rates if rate not in self.diverged]
        return [self._run(pool, rate, TUNING_SEED, [VALIDATION], self.folder.sizing.validation) for rate in open_rates]

    def rate(self) -> float | None:
        """The learning rate with the lowest validation loss, None while one has not been tried, or if all diverged."""
        if len(self.rates) == 1:
            return self.rates[0]
        tried = [(scores.validation_loss, rate) for rate in self.rates if (scores := self._scores(rate, TUNING_SEED))]
        return min(tried)[1] if tried and len(tried) + len(self.diverged) == len(self.rates) else None

    @property
    def diverged(self) -> list[float]:
        """The learning rates with which the search has lost the weights."""
        folders = {rate: self._folder(rate, TUNING_SEED).directory for rate in self.rates}
        return [rate for rate, folder in folders.items() if (folder / DIVERGED).exists() and not (folder / SCORES).exists()]

    def run(self, pool: RunPool, rate: float, seed: int) -> Run[Scores]:
        """The run of a seed, scored on all tests."""
        return self._run(pool, rate, seed, list(self.folder.task.tests), self.folder.sizing.test)

    def scored(self, seeds: range) -> dict[int, Scores]:
        """By seed, what has been scored with the chosen learning rate."""
        rate = self.rate()
        return {seed: scores for seed in seeds if rate is not None and (scores := self._scores(rate, seed))}

    def _scores(self, rate: float, seed: int) -> Scores | None:
        path = self._folder(rate, seed).directory / SCORES
        return Scores.read(path) if path.exists() else None

    def _folder(self, rate: float, seed: int) -> RunFolder:
        return RunFolder(self.directory / f"rate-{rate:g}" / f"seed-{seed}")

    def _run(self, pool: RunPool, rate: float, seed: int, splits: list[str], count: int) -> Run[Scores]:
        file = str(self.folder.config)
        folder = self._folder(rate, seed)
        base = self.base
        most = ENCODINGS[base.model.encoding].max_positions
        settings = [
            *self.variant.settings_for(base),
            f"optimizer.learning_rate={rate}",
            f"training.seed={seed}",
            f"run.directory={folder.directory}",
        ]
        if most is not None and most < max(map(self.folder.task.tokens, self.folder.task.splits)) - 1:
            settings.append(f"model.max_positions={most}")  # scores of longer splits say why there are none
        config = load_config(file, settings)
        train = pool.pretrain(file, settings)
        measures = {folder.directory / SCORES: (measure, str(folder.directory), self.encoding, splits, count)}
        return Run(f"{self.name}, rate {rate:g}, seed {seed}", config, train, measures, Scores.read)


RESULTS = "results.jsonl"
TABLES = "suite.md"
PAGE = "suite.html"

WritePage = Callable[[list[Record], list[str], Plan, dict[str, list[float]], str, Path], None]


def suite(
    plan: Plan,
    out: Path,
    pool: RunPool,
    command: str,
    write_page: WritePage,
    only: int | None = None,
) -> Iterator[str]:
    """Train and score the missing runs; yields progress messages, then the tables.

    Args:
        plan: Tasks, encodings, seeds and learning rates.
        out: Folder of the suite.
        pool: Pool that runs them.
        command: Command line of the user, for the tables.
        write_page: `write_page` of megatape/lab/report/suite_page.py.
        only: Number of the one task and encoding to train, as a task of an array job; the tables have all.

    When it is interrupted, it writes the tables of the results so far.

    Raises:
        UserError: `out` holds other definitions, sizes or shapes; before training.
        RunsFailed: Runs failed; at the end.
    """
    folders = {task: TaskFolder(out, task, SIZES[plan.size]) for task in plan.tasks}
    for folder in folders.values():
        folder.check()
    if only is not None and not 0 <= only < len(plan.pairs):
        raise UserError(f"cell is {only}: the tasks and encodings have the numbers 0 to {len(plan.pairs) - 1}")
    experiments = [Experiment(folders[task], encoding, plan.rates) for task, encoding in plan.pairs]

    with interruptible(), locked_study(out if only is None else experiments[only].directory) as lock:
        results = partial(_write_results, experiments, plan, out, command, write_page, locked_already=only is None)
        try:
            runs, failures = yield from _finish(experiments if only is None else [experiments[only]], plan, pool, out, lock)
        except KeyboardInterrupt:
            results()
            raise
        yield results()
    check_all(failures, runs)


def _finish(
    experiments: list[Experiment], plan: Plan, pool: RunPool, out: Path, lock: IO[bytes]
) -> Generator[str, None, tuple[list[Run[Scores]], list[str]]]:
    """Train and score what is missing of the experiments. Returns all runs, and an error for each that failed."""
    for folder in dict.fromkeys(experiment.folder for experiment in experiments):
        yield f"preparing {folder.data}"
        folder.prepare()
        folder.baselines()
    tuning = [run for experiment in experiments for run in experiment.tuning(pool)]
    failures = (yield from pool.finish(tuning, out, lock)) if tuning else []
    rates = {experiment: rate for experiment in experiments if (rate := experiment.rate()) is not None}
    # By seed, so that every task and every encoding has results early.
    runs = [experiment.run(pool, rate, seed) for seed in plan.range for experiment, rate in rates.items()]
    failures += yield from pool.finish(runs, out, lock)
    return [*tuning, *runs], failures


def _write_results(
    experiments: list[Experiment], plan: Plan, out: Path, command: str, write_page: WritePage, locked_already: bool
) -> str:
    """Write what there is of all experiments, one machine at a time; returns the tables."""
    with nullcontext() if locked_already else locked_study(out, wait=True):
        scored = {experiment: experiment.scored(plan.range) for experiment in experiments}
        records = [record for found in scored.values() for scores in found.values() for record in scores.records]
        folders = dict.fromkeys(experiment.folder for experiment in experiments)
        records += [record for folder in folders if folder.data.exists() for record in folder.baselines()]
        lost = [
            f"{experiment.name}: learning rate {rate:g} (the weights diverged)"
            for experiment in experiments
            for rate in experiment.diverged
        ]
        not_run = [*plan.left_out, *lost, *_missing(scored, plan)]
        write_records(out / RESULTS, records)
        known = [experiment for experiment in experiments if experiment.variant.control and experiment.folder.data.exists()]
        controls = [
            f"{experiment.folder.task.name}: {experiment.variant.describe_control(experiment.base)}" for experiment in known
        ]
        text = "\n\n".join([f"    {command}", *controls, summarize(records, not_run)])
        (out / TABLES).write_text(text + "\n", encoding="utf-8")
        seconds: dict[str, list[float]] = {}
        for experiment, found in scored.items():
            seconds.setdefault(experiment.encoding, []).extend(scores.seconds for scores in found.values())
        write_page(records, not_run, plan, seconds, command, out / PAGE)
    return f"{text}\n\nwrote {out / RESULTS}, {out / TABLES}, {out / PAGE}"


def _missing(scored: dict[Experiment, dict[int, Scores]], plan: Plan) -> list[str]:
    """A phrase for each experiment with seeds that have no scores."""
    missing = {experiment: [str(seed) for seed in plan.range if seed not in found] for experiment, found in scored.items()}
    return [
        f"{experiment.name}: seeds {', '.join(seeds)} (not run yet, or failed)"
        for experiment, seeds in missing.items()
        if seeds
    ]
