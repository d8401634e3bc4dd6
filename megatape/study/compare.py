"""Trains the same model with several encodings and seeds, evaluates each, and compares the results.

    OUT/tape/seed-1234/             a run of `megatape pretrain`, with its log.txt
        outcome.json                its results; outcome+yarn.json: the same with scaled frequencies
    OUT/comparison.md, comparison.png

A run that has an outcome is skipped, so the same command continues where it was stopped, also with more encodings or seeds.
"""

import os
import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from megatape.checkpoint.reader import CheckpointReader
from megatape.checkpoint.same_run import check_same_run
from megatape.config import Config, Identity, differences, load_config
from megatape.data.splits import open_data
from megatape.run_folder import RunFolder
from megatape.study.children import Children, interruptible, locked
from megatape.study.comparison import report
from megatape.study.measure import check_measurable
from megatape.study.outcome import Outcome
from megatape.study.variants import Variant, parse_variants

Environment = dict[str, str]

SCRIPT = Path(__file__).parents[1] / "__main__.py"  # launchers take a script


class RunsFailed(ChildProcessError):
    """Some runs of a comparison failed; the others are complete."""


@dataclass(frozen=True)
class Run:
    """One training run of a comparison, and the scalings to evaluate it with."""

    trained: str
    config: Config
    train: list[str]
    scalings: list[str | None]

    @property
    def name(self) -> str:
        """Name for messages."""
        return f"{self.trained}, seed {self.config.training.seed}"

    @property
    def folder(self) -> RunFolder:
        """The run's folder."""
        return RunFolder(Path(self.config.run.directory))

    def missing(self) -> list[str | None]:
        """Scalings without an outcome."""
        return [scaling for scaling in self.scalings if not self.folder.outcome(scaling).exists()]

    def check(self, fingerprints: dict[str, str]) -> None:
        """Raise ValueError if the run cannot be evaluated, or if its folder holds a run with other settings."""
        for scaling in self.scalings:
            check_measurable(self.config, scaling)
            path = self.folder.outcome(scaling)
            if path.exists():
                outcome = Outcome.read(path)
                self._check_origin(path, outcome.config, outcome.fingerprints, fingerprints)
        for path in self.folder.list_checkpoints():
            try:
                reader = CheckpointReader(path)
            except (ValueError, OSError):
                continue  # corrupted: training resumes from an older one, with a warning
            self._check_origin(path, reader.config, reader.state["fingerprints"], fingerprints)

    def finish(self, children: Children, environments: "SimpleQueue[Environment]") -> None:
        """Train and evaluate what is missing, in the next free environment. Raises RunsFailed with the error from the log."""
        if not self.missing():
            return
        environment = environments.get()
        try:
            self.folder.directory.mkdir(parents=True, exist_ok=True)
            checkpoint = self.folder.checkpoint(self.config.training.steps)
            if not checkpoint.is_dir():
                self._run("training", children, self.train, environment, checkpoint)
            for scaling in self.missing():
                command = [
                    sys.executable,
                    "-m",
                    "megatape.study.measure",
                    str(self.folder.directory),
                    *([scaling] if scaling else []),
                ]
                self._run("measuring", children, command, environment, self.folder.outcome(scaling))
        finally:
            environments.put(environment)

    def outcomes(self, scaling: str | None) -> list[Outcome]:
        """The outcome with this scaling, if it exists."""
        path = self.folder.outcome(scaling)
        return [Outcome.read(path)] if path.exists() else []

    def _run(self, what: str, children: Children, command: list[str], environment: Environment, product: Path) -> None:
        log = self.folder.log
        status = children.run(command, environment, log)
        if not product.exists():
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            # Launchers log more lines after the one that names the error.
            errors = [line for line in lines if line.startswith("error")] or lines or ["nothing"]
            raise RunsFailed(f"{self.name}: {what} exited with status {status}; {log} says: {errors[-1]}")

    def _check_origin(self, origin: Path, theirs: Config, recorded: dict[str, str], fingerprints: dict[str, str]) -> None:
        check_same_run(origin, theirs, recorded, self.config, fingerprints)
        for field in differences(theirs, self.config):
            if field.identity is Identity.COMPARED:
                raise ValueError(
                    f"{origin} was trained with {field.path} {field.theirs}, now it is {field.ours}: use the former, or choose "
                    "another --out"
                )


def compare(
    file: str,
    settings: list[str],
    encodings: str,
    seeds: int,
    out: Path,
    jobs: int,
    launcher: str | None,
    command: str,
) -> Iterator[str]:
    """Train and evaluate whatever is missing, write table and plot; yields progress messages, then the table.

    settings  overrides of the configuration `file`
    seeds     number of seeds, from training.seed upwards; a seed gives all encodings the same samples in the same order, and
              weights of the same name the same initial values
    jobs      runs in parallel
    launcher  command that starts a Python script on all ranks; None: one process per run
    command   what the user typed, for the table

    Raises ValueError or OSError before training if an argument or a run in `out` does not fit, RunsFailed at the end if runs
    failed."""
    for option, value in (("--seeds", seeds), ("--jobs", jobs)):
        if value < 1:
            raise ValueError(f"{option} is {value}: give at least 1")
    base = load_config(file, settings)
    if base.model.scaling is not None:
        raise ValueError(
            "model.scaling is set, but encodings are trained without it: remove it, and compare, for example, tape+yarn"
        )
    variants = parse_variants(encodings)
    environments = _environments(jobs, launcher)
    start = [*(shlex.split(launcher) if launcher else [sys.executable]), str(SCRIPT), "pretrain"]
    runs = _runs(file, settings, variants, range(base.training.seed, base.training.seed + seeds), out, start)
    data = open_data(base)
    for run in runs:
        run.check(data.fingerprints)

    failures = []
    with interruptible(), locked(out) as lock, ThreadPoolExecutor(jobs) as pool:
        missing = sum(bool(run.missing()) for run in runs)
        yield f"{len(runs)} runs, {missing} of them to do, {jobs} at a time; each logs to its log.txt in {out}"
        children = Children(lock)
        running = {pool.submit(run.finish, children, environments): run for run in runs}
        try:
            for done in as_completed(running):
                try:
                    done.result()
                    yield _summary(running[done])
                except RunsFailed as error:
                    failures.append(str(error))
                    yield f"failed: {error}"
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            children.stop()
            raise
        rows = [(variant.label, _outcomes(variant, runs)) for variant in variants]
        if rows := [row for row in rows if row[1]]:
            yield report(rows, command, out)
    if failures:
        raise RunsFailed(f"{len(failures)} of {len(runs)} runs failed; the table has the others\n" + "\n".join(failures))


def _environments(jobs: int, launcher: str | None) -> "SimpleQueue[Environment]":
    """Environments of parallel runs: a GPU each, or an equal share of the cores. A launcher manages its devices itself."""
    environments: SimpleQueue[Environment] = SimpleQueue()
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = shown.split(",") if shown else [str(number) for number in range(torch.cuda.device_count())]
    if launcher and jobs > 1:
        raise ValueError(f"--jobs is {jobs}, but a run started by --launcher takes the whole machine: remove one of them")
    if not launcher and gpus and jobs > len(gpus):
        raise ValueError(f"--jobs is {jobs}, but there are {len(gpus)} GPUs, and every run needs its own: lower --jobs")
    for job in range(jobs):
        own: Environment = {}
        if not launcher and gpus:
            own["CUDA_VISIBLE_DEVICES"] = gpus[job]
        elif not launcher:
            threads = os.environ.get("MEGATAPE_THREADS", str(max(1, len(os.sched_getaffinity(0)) // jobs)))
            own |= {"MEGATAPE_THREADS": threads, "OMP_NUM_THREADS": threads}
        environments.put(os.environ | own)
    return environments


def _runs(file: str, settings: list[str], variants: list[Variant], seeds: range, out: Path, start: list[str]) -> list[Run]:
    """All runs, ordered by seed so that every encoding has results early. Raises ValueError if two are the same model."""
    runs = []
    for seed in seeds:
        models: dict[Any, str] = {}
        for variant in dict.fromkeys(Variant(variant.trained, variant.settings, None) for variant in variants):
            directory = out / variant.trained.replace(":", "_") / f"seed-{seed}"
            own = [*settings, *variant.settings, f"training.seed={seed}", f"run.directory={directory}"]
            config = load_config(file, own)
            same = models.setdefault(config.model.model_dump_json(), variant.trained)
            if same != variant.trained:
                raise ValueError(f"--encodings: {same} and {variant.trained} are the same model: remove one of them")
            changes = [word for setting in own for word in ("--set", setting)]
            train = [*start, "--config", file, *changes, "--resume", "auto"]
            scalings = [other.scaling for other in variants if other.trained == variant.trained]
            runs.append(Run(variant.trained, config, train, scalings))
    return runs


def _summary(run: Run) -> str:
    """A run's results in one line."""
    parts = []
    for scaling in run.scalings:
        for outcome in run.outcomes(scaling):
            metrics = ", ".join(f"{name} {value:.4g}" for name, value in outcome.figures.items())
            parts.append(f"{scaling}: {metrics}" if scaling else metrics)
    return f"{run.name}: {'; '.join(parts)}"


def _outcomes(variant: Variant, runs: list[Run]) -> list[Outcome]:
    """Outcomes of a variant, from all seeds that have one."""
    return [outcome for run in runs if run.trained == variant.trained for outcome in run.outcomes(variant.scaling)]
