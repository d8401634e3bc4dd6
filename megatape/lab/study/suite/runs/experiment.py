"""Experiment of the suite: a task and an encoding. It searches the learning rate, then runs all seeds."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from megatape.config import Config, load_config
from megatape.data.synthetic.task import VALIDATION
from megatape.lab.study.comparison.variants import Variant, parse_variants
from megatape.lab.study.execution.measurement import Measurement
from megatape.lab.study.execution.pool import RunPool
from megatape.lab.study.execution.run import DIVERGED, Run
from megatape.lab.study.suite.runs.rate_search import RateSearch
from megatape.lab.study.suite.runs.task_folder import TaskFolder
from megatape.lab.study.suite.scores.measure import measure
from megatape.lab.study.suite.scores.model_scores import SCORES, Scores
from megatape.registry import ENCODINGS
from megatape.run_folder import RunFolder

# Seed of the learning-rate search. The reported runs use seeds 1, 2, ...
TUNING_SEED = 0


@dataclass(frozen=True)
class Experiment:
    """A task and an encoding.

    Attributes:
        folder: Files of the task.
        encoding: Label of the variant.
        rates: Learning rates to search. A single rate is used without a search.
    """

    folder: TaskFolder
    encoding: str
    rates: tuple[float, ...]

    @property
    def name(self) -> str:
        """Name in messages."""
        return f"{self.folder.task.name}, {self.encoding}"

    @property
    def directory(self) -> Path:
        """Folder of all runs."""
        return self.folder.out / self.folder.task.name / self.encoding.replace(":", "_")

    @property
    def variant(self) -> Variant:
        """Variant of the models."""
        return parse_variants(self.encoding)[0]

    def load_base(self) -> Config:
        """Load the configuration of all runs, without the width of a control and the settings that differ between runs."""
        return load_config(self.folder.config, [*self.variant.settings, f"run.directory={self.directory}"])

    def read_search(self) -> RateSearch:
        """Read the state of the search of the learning rate."""
        losses = {}
        diverged = []
        for rate in self.rates:
            scores = self._read_scores(rate, TUNING_SEED)
            if scores is not None:
                losses[rate] = scores.validation_loss
            elif (self._folder(rate, TUNING_SEED).directory / DIVERGED).exists():
                diverged.append(rate)
        return RateSearch(self.rates, losses, tuple(diverged))

    def read_scores(self, seeds: range) -> dict[int, Scores]:
        """Read the scores of the runs with the chosen learning rate, by seed. Unfinished runs are skipped."""
        rate = self.read_search().chosen
        if rate is None:
            return {}
        found = {}
        for seed in seeds:
            scores = self._read_scores(rate, seed)
            if scores is not None:
                found[seed] = scores
        return found

    def search_runs(self, pool: RunPool) -> list[Run[Scores]]:
        """Return the runs of the search, one for each learning rate, scored on the validation split."""
        rates = self.read_search().to_run
        return [self._run(pool, rate, TUNING_SEED, [VALIDATION], self.folder.sizing.validation) for rate in rates]

    def run(self, pool: RunPool, rate: float, seed: int) -> Run[Scores]:
        """Return the run of a seed, scored on all tests."""
        return self._run(pool, rate, seed, [*self.folder.task.tests], self.folder.sizing.test)

    def _read_scores(self, rate: float, seed: int) -> Scores | None:
        path = self._folder(rate, seed).directory / SCORES
        if not path.exists():
            return None
        return Scores.read(path)

    def _folder(self, rate: float, seed: int) -> RunFolder:
        return RunFolder(self.directory / f"rate-{rate:g}" / f"seed-{seed}")

    def _run(self, pool: RunPool, rate: float, seed: int, splits: list[JsonValue], count: int) -> Run[Scores]:
        """Return a run that is scored on `count` samples of each split."""
        file = str(self.folder.config)
        folder = self._folder(rate, seed)
        base = self.load_base()
        settings = [
            *self.variant.settings_for(base),
            f"optimizer.learning_rate={rate}",
            f"training.seed={seed}",
            f"run.directory={folder.directory}",
        ]
        max_positions = ENCODINGS[base.model.encoding].max_positions
        task = self.folder.task
        longest = max(task.tokens(split) for split in task.splits)
        if max_positions is not None and max_positions < longest - 1:
            # Longer splits get a reason in place of scores.
            settings.append(f"model.max_positions={max_positions}")
        arguments = (str(folder.directory), self.encoding, splits, count)
        measurement = Measurement(folder.directory / SCORES, measure, arguments)
        return Run(
            name=f"{self.name}, rate {rate:g}, seed {seed}",
            config=load_config(file, settings),
            train=pool.pretrain_command(file, settings),
            measurements=(measurement,),
            result=Scores,
        )
