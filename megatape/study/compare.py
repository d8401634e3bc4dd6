"""Trains the same model with several encodings and seeds, measures each, and sets them beside each other.

    OUT/tape/seed-1234/             a run of `megatape pretrain`, with its log.txt
        outcome.json                what came out; outcome+yarn.json the same with scaled frequencies
    OUT/comparison.md, comparison.png

What has an outcome is not done again, so the same command goes on where it was stopped, with more encodings or seeds too.
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

SCRIPT = Path(__file__).parents[1] / "__main__.py"  # launchers start scripts


class RunsFailed(ChildProcessError):
    """Some runs of a comparison failed; the others are done."""


@dataclass(frozen=True)
class Run:
    """One training of a comparison, and the scalings it is measured with."""

    trained: str
    config: Config
    train: list[str]
    scalings: list[str | None]

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.trained}, seed {self.config.training.seed}"

    @property
    def folder(self) -> RunFolder:
        """Where it is kept."""
        return RunFolder(Path(self.config.run.directory))

    def missing(self) -> list[str | None]:
        """Scalings without an outcome."""
        return [scaling for scaling in self.scalings if not self.folder.outcome(scaling).exists()]

    def check(self, fingerprints: dict[str, str]) -> None:
        """Raises ValueError if it cannot be measured, or if what is there was trained in another way."""
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
                continue  # training goes on from an older one, and says so
            self._check_origin(path, reader.config, reader.state["fingerprints"], fingerprints)

    def finish(self, children: Children, environments: "SimpleQueue[Environment]") -> None:
        """Train and measure what is missing, in the next free environment. Raises RunsFailed with the end of the log if that fails."""
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
        """The one with this scaling, if it is there."""
        path = self.folder.outcome(scaling)
        return [Outcome.read(path)] if path.exists() else []

    def _run(self, what: str, children: Children, command: list[str], environment: Environment, product: Path) -> None:
        log = self.folder.log
        status = children.run(command, environment, log)
        if not product.exists():
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            # A launcher writes lines of its own behind the one that tells.
            told = [line for line in lines if line.startswith("error")] or lines or ["nothing"]
            raise RunsFailed(f"{self.name}: {what} ended with status {status}; {log} says: {told[-1]}")

    def _check_origin(self, origin: Path, theirs: Config, recorded: dict[str, str], fingerprints: dict[str, str]) -> None:
        check_same_run(origin, theirs, recorded, self.config, fingerprints)
        for field in differences(theirs, self.config):
            if field.identity is Identity.COMPARED:
                raise ValueError(
                    f"{origin} was trained with {field.path} {field.theirs}, now it is {field.ours}: use the former, or choose another --out"
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
    """Train and measure whatever is missing, write table and picture; yields what to tell on the way, the table last.

    settings: overrides of the configuration `file`. seeds: how many, counted on from training.seed; a seed has the same samples in the same
    order and the same initial value of every weight of the same name for all encodings. jobs: runs at a time. launcher: command that starts a
    Python script on all ranks, None for one process each. command: what was typed, for the table. Raises ValueError and OSError before
    anything is trained if something does not fit, and RunsFailed in the end if runs failed."""
    for option, value in (("--seeds", seeds), ("--jobs", jobs)):
        if value < 1:
            raise ValueError(f"{option} is {value}: give at least 1")
    base = load_config(file, settings)
    if base.model.scaling is not None:
        raise ValueError(
            "model.scaling is set, but encodings are trained without: remove it, and compare for example tape+yarn"
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
        yield f"{len(runs)} runs, {missing} of them to be done, {jobs} at a time; each has its log.txt in {out}"
        children = Children(lock)
        running = {pool.submit(run.finish, children, environments): run for run in runs}
        try:
            for done in as_completed(running):
                try:
                    done.result()
                    yield _told(running[done])
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
        raise RunsFailed(f"{len(failures)} of {len(runs)} runs failed; the table is of the others\n" + "\n".join(failures))


def _environments(jobs: int, launcher: str | None) -> "SimpleQueue[Environment]":
    """What runs at a time see: a GPU each, or an equal share of the cores; whatever a launcher takes is its own business."""
    environments: SimpleQueue[Environment] = SimpleQueue()
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = shown.split(",") if shown else [str(number) for number in range(torch.cuda.device_count())]
    if launcher and jobs > 1:
        raise ValueError(f"--jobs is {jobs}, but what --launcher starts takes the machine for itself: leave one of them out")
    if not launcher and gpus and jobs > len(gpus):
        raise ValueError(f"--jobs is {jobs}, but there are {len(gpus)} GPUs: a run needs one of its own")
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
    """Seed by seed, so that all encodings have something early. Raises ValueError if two are the same model."""
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


def _told(run: Run) -> str:
    """What came out, in one line."""
    told = []
    for scaling in run.scalings:
        for outcome in run.outcomes(scaling):
            figures = ", ".join(f"{name} {value:.4g}" for name, value in outcome.figures.items())
            told.append(f"{scaling}: {figures}" if scaling else figures)
    return f"{run.name}: {'; '.join(told)}"


def _outcomes(variant: Variant, runs: list[Run]) -> list[Outcome]:
    """Of all its seeds that are done."""
    return [outcome for run in runs if run.trained == variant.trained for outcome in run.outcomes(variant.scaling)]
