"""Experiment of the suite: a task and an encoding, run to search the learning rate and then with all seeds."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from megatape.config import Config, SettingValues, as_overrides, load_config
from megatape.data.synthetic.task import VALIDATION
from megatape.lab.study.execution.divergence import error_file
from megatape.lab.study.execution.measurement import Measurement
from megatape.lab.study.execution.pool import RunPool
from megatape.lab.study.execution.run import Run
from megatape.lab.study.suite.runs.rate_search import RateGrid, RateSearch, tuning_seeds
from megatape.lab.study.suite.runs.task_folder import TaskFolder
from megatape.lab.study.suite.scores.measure import score_run, score_trained_model
from megatape.lab.study.suite.scores.task_result import SCORES, TaskResult
from megatape.lab.study.variants import EncodingVariant, folder_name, parse_variants
from megatape.registry import ENCODINGS
from megatape.run_folder import RunFolder


@dataclass(frozen=True)
class Experiment:
    """A task and an encoding.

    Attributes:
        task_folder: Files of the task.
        encoding: Variant label.
        grid: Learning rates to search.
    """

    task_folder: TaskFolder
    encoding: str
    grid: RateGrid

    @property
    def name(self) -> str:
        """Name in messages."""
        return f"{self.task_folder.task.name}, {self.encoding}"

    @property
    def directory(self) -> Path:
        """Folder holding all runs."""
        return self.task_folder.out / self.task_folder.task.name / folder_name(self.encoding)

    @property
    def variant(self) -> EncodingVariant:
        """Variant to train."""
        return parse_variants(self.encoding)[0]

    def load_base(self) -> Config:
        """Load the configuration shared by all runs, without the width of a control and the settings that differ."""
        settings: SettingValues = {"run.directory": str(self.directory)}
        return load_config(self.task_folder.config, [*self.variant.overrides, *as_overrides(settings)])

    def read_search(self) -> RateSearch:
        """Read the state of the learning-rate search."""
        losses: dict[float, dict[int, float]] = {}
        diverged = []
        for rate in self.grid.candidates:
            for seed in tuning_seeds(self.grid.seeds):
                result = self._read_result(rate, seed)
                if result is not None:
                    losses.setdefault(rate, {})[seed] = result.validation_loss
                elif error_file(self._run_folder(rate, seed)).exists() and rate not in diverged:
                    diverged.append(rate)
        return RateSearch(self.grid, losses, tuple(diverged))

    def read_results(self, seeds: range) -> dict[int, TaskResult]:
        """Read the results of the runs with the chosen learning rate, by seed, skipping unfinished runs."""
        rate = self.read_search().chosen
        if rate is None:
            return {}
        results = {}
        for seed in seeds:
            result = self._read_result(rate, seed)
            if result is not None:
                results[seed] = result
        return results

    def search_runs(self, pool: RunPool) -> list[Run[TaskResult]]:
        """Return the search's runs, scored on the validation split."""
        runs = self.read_search().to_run
        return [self._run(pool, rate, seed, [VALIDATION], self.task_folder.sizing.validation) for rate, seed in runs]

    def run(self, pool: RunPool, rate: float, seed: int, run_folder: RunFolder | None = None) -> Run[TaskResult]:
        """Return the run of a seed, scored on all test splits.

        Args:
            pool: Pool that will execute the run.
            rate: Learning rate.
            seed: Seed.
            run_folder: Run directory, by default that of the rate and seed.
        """
        return self._run(pool, rate, seed, [*self.task_folder.task.tests], self.task_folder.sizing.test, run_folder)

    def _read_result(self, rate: float, seed: int) -> TaskResult | None:
        path = self._run_folder(rate, seed).directory / SCORES
        if not path.exists():
            return None
        return TaskResult.read(path)

    def run_directory(self, rate: float, seed: int) -> Path:
        """Return the directory of a run, relative to the suite's folder."""
        return self.directory.relative_to(self.task_folder.out) / f"rate-{rate:g}" / f"seed-{seed}"

    def _run_folder(self, rate: float, seed: int) -> RunFolder:
        return RunFolder(self.task_folder.out / self.run_directory(rate, seed))

    def _run(
        self,
        pool: RunPool,
        rate: float,
        seed: int,
        splits: list[JsonValue],
        count: int,
        run_folder: RunFolder | None = None,
    ) -> Run[TaskResult]:
        """Return a run to be scored on `count` samples of each split."""
        file = str(self.task_folder.config)
        run_folder = run_folder or self._run_folder(rate, seed)
        base = self.load_base()
        settings: SettingValues = {
            "optimizer.learning_rate": rate,
            "training.seed": seed,
            "run.directory": str(run_folder.directory),
        }
        max_positions = ENCODINGS[base.model.encoding].max_positions
        task = self.task_folder.task
        longest = max(task.tokens(split) for split in task.splits)
        if max_positions is not None and max_positions < longest - 1:
            # Longer splits get a reason instead of a score.
            settings["model.max_positions"] = max_positions
        overrides = [*self.variant.overrides_for(base), *as_overrides(settings)]
        arguments = (str(run_folder.directory), self.encoding, splits, count)
        measurement = Measurement(run_folder.directory / SCORES, score_run, arguments, score_trained_model)
        return Run(
            name=f"{self.name}, rate {rate:g}, seed {seed}",
            config=load_config(file, overrides),
            train=pool.pretrain_command(file, overrides),
            measurements=(measurement,),
            result=TaskResult,
        )
