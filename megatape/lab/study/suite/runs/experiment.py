"""A task and an encoding of the suite: search of the learning rate, then the runs of all seeds."""

from dataclasses import dataclass
from pathlib import Path

from megatape.config import Config, load_config
from megatape.data.synthetic.task import VALIDATION
from megatape.lab.study.comparison.variants import Variant, parse_variants
from megatape.lab.study.execution.pool import RunPool
from megatape.lab.study.execution.run import DIVERGED, Run
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

    @property
    def base(self) -> Config:
        """Configuration of all runs, before the width of a control and the settings that differ between runs."""
        return load_config(self.folder.config, [*self.variant.settings, f"run.directory={self.directory}"])

    @property
    def diverged(self) -> list[float]:
        """Learning rates whose run in the search diverged."""
        rates = []
        for rate in self.rates:
            directory = self._folder(rate, TUNING_SEED).directory
            if (directory / DIVERGED).exists() and not (directory / SCORES).exists():
                rates.append(rate)
        return rates

    def search(self, pool: RunPool) -> list[Run[Scores]]:
        """Return a run for each learning rate to try, scored on the validation split."""
        if len(self.rates) == 1:
            return []
        diverged = self.diverged
        runs = []
        for rate in self.rates:
            if rate not in diverged:
                runs.append(self._run(pool, rate, TUNING_SEED, [VALIDATION], self.folder.sizing.validation))
        return runs

    def chosen_rate(self) -> float | None:
        """Return the learning rate with the lowest validation loss.

        Returns:
            The learning rate, or None if the search is not complete or all rates diverged.
        """
        if len(self.rates) == 1:
            return self.rates[0]
        losses = {}
        for rate in self.rates:
            scores = self._scores(rate, TUNING_SEED)
            if scores is not None:
                losses[rate] = scores.validation_loss
        is_complete = len(losses) + len(self.diverged) == len(self.rates)
        if not losses or not is_complete:
            return None
        # The smaller of two rates with the same loss.
        return min(losses, key=lambda rate: (losses[rate], rate))

    def run(self, pool: RunPool, rate: float, seed: int) -> Run[Scores]:
        """Return the run of a seed, scored on all tests."""
        return self._run(pool, rate, seed, list(self.folder.task.tests), self.folder.sizing.test)

    def scores(self, seeds: range) -> dict[int, Scores]:
        """Return the scores of the runs with the chosen learning rate by seed. Runs that are not done are skipped."""
        rate = self.chosen_rate()
        if rate is None:
            return {}
        found = {}
        for seed in seeds:
            scores = self._scores(rate, seed)
            if scores is not None:
                found[seed] = scores
        return found

    def _scores(self, rate: float, seed: int) -> Scores | None:
        path = self._folder(rate, seed).directory / SCORES
        if not path.exists():
            return None
        return Scores.read(path)

    def _folder(self, rate: float, seed: int) -> RunFolder:
        return RunFolder(self.directory / f"rate-{rate:g}" / f"seed-{seed}")

    def _run(self, pool: RunPool, rate: float, seed: int, splits: list[str], count: int) -> Run[Scores]:
        """Return a run that is scored on `count` samples of each split."""
        file = str(self.folder.config)
        folder = self._folder(rate, seed)
        base = self.base
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
        return Run(
            name=f"{self.name}, rate {rate:g}, seed {seed}",
            config=load_config(file, settings),
            train=pool.pretrain_command(file, settings),
            measure={folder.directory / SCORES: (measure, str(folder.directory), self.encoding, splits, count)},
            read=Scores.read,
        )
