"""Trains the same model with several encodings and seeds, measures each, and sets them beside each other.

    OUT/tape/seed-1234/             a run of launch/pretrain.py, with its log.txt
        outcome.json                what it is measured by (study/outcome.py); outcome+yarn.json the same with scaled frequencies
    OUT/comparison.md, comparison.png

Whatever is there is not done again, so the same command goes on where it was stopped, with more encodings or seeds too.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from megatape.checkpoint.manifest import folder_name, list_checkpoints
from megatape.checkpoint.reader import CheckpointReader
from megatape.checkpoint.same_run import check_same_run
from megatape.config import Config, load_config
from megatape.data.splits import open_data
from megatape.study.comparison import Trained, report
from megatape.study.outcome import Outcome, is_addition, measure
from megatape.study.variants import Variant, parse_variants


@dataclass(frozen=True)
class Training:
    """One run of a comparison: what is trained, by which seed, and how it is started."""

    trained: str
    config: Config
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.trained}, seed {self.config.training.seed}"

    @property
    def directory(self) -> Path:
        """Of the run."""
        return Path(self.config.run.directory)

    @property
    def checkpoint(self) -> Path:
        """The last one, there when training is complete."""
        return self.directory / "checkpoints" / folder_name(self.config.training.steps)

    def outcome(self, scaling: str | None) -> Path:
        """File of what was measured with this scaling."""
        return self.directory / (f"outcome+{scaling}.json" if scaling else "outcome.json")

    def check(self, fingerprints: dict[str, str]) -> None:
        """Raises ValueError if what is there was trained in another way."""
        for path in list_checkpoints(self.directory / "checkpoints")[:1]:
            reader = CheckpointReader(path)
            check_same_run(reader, self.config, fingerprints)
            if different := _first_difference(reader.config.model_dump(), self.config.model_dump()):
                name, before, now = different
                raise ValueError(
                    f"{path} was trained with {name} {before}, now it is {now}: use the former, or choose another --out"
                )

    def run(self, environment: dict[str, str]) -> None:
        """Train to the end. Raises RuntimeError that shows the end of the log if that fails."""
        if self.checkpoint.is_dir():
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        log = self.directory / "log.txt"
        with log.open("a", encoding="utf-8") as file:
            print(shlex.join(self.command), file=file, flush=True)
            status = subprocess.run(
                self.command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=environment
            ).returncode
        if not self.checkpoint.is_dir():
            last = " | ".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:])
            raise RuntimeError(f"{self.name}: training ended with status {status} before its last step; {log} ends: {last}")


def compare(
    file: str, settings: list[str], encodings: str, seeds: int, out: Path, jobs: int, launcher: str | None, pretrain: Path
) -> Iterator[str]:
    """Train and measure whatever is missing, write table and picture; yields what to tell on the way, the table last.

    settings: overrides of the configuration `file`. seeds: how many, counted on from training.seed; a seed has the same samples in the same
    order and the same initial value of every weight of the same name for all encodings. jobs: runs at a time. launcher: command that starts
    `pretrain`, None for one process each. Raises ValueError and OSError for wrong arguments, before anything is trained; at the end
    RuntimeError for runs that failed, the others being done."""
    for option, value in (("--seeds", seeds), ("--jobs", jobs)):
        if value < 1:
            raise ValueError(f"{option} is {value}: give at least 1")
    base = load_config(file, settings)
    if base.model.scaling is not None:
        raise ValueError(
            "model.scaling is set, but encodings are trained without: remove it, and compare for example tape+yarn"
        )
    is_addition(base)
    variants = parse_variants(encodings)
    start = shlex.split(launcher) if launcher else [sys.executable]
    trainings = _trainings(
        file, settings, variants, range(base.training.seed, base.training.seed + seeds), out, [*start, str(pretrain)]
    )
    train_data, _ = open_data(base)
    for training in trainings:
        training.check({"data": train_data.fingerprint, "tokenizer": train_data.tokenizer_hash})
    # Runs at a time share the cores, and measuring takes one run's share.
    threads = int(os.environ.get("MEGATAPE_THREADS", max(1, len(os.sched_getaffinity(0)) // jobs)))
    torch.set_num_threads(threads)
    missing = sum(not training.checkpoint.is_dir() for training in trainings)
    yield f"{len(trainings)} runs, {missing} of them to be trained, {jobs} at a time; each has its log.txt in {out}"

    failures = []
    with ThreadPoolExecutor(jobs) as pool:
        environment = os.environ | {"MEGATAPE_THREADS": str(threads)}
        running = {pool.submit(training.run, environment): training for training in trainings}
        try:
            for done in as_completed(running):
                training = running[done]
                if error := done.exception():
                    if not isinstance(error, RuntimeError):
                        raise error
                    failures.append(str(error))
                    yield f"failed: {error}"
                else:
                    yield f"{training.name}: {_measured(training, variants)}"
        finally:
            pool.shutdown(cancel_futures=True)  # after an interruption too, which the trainings have heard of themselves

    rows = [(variant.label, _trained(variant, trainings)) for variant in variants]
    yield report(base, f"{file} {shlex.join(settings)}".strip(), [(label, runs) for label, runs in rows if runs], out)
    if failures:
        raise RuntimeError(
            f"{len(failures)} of {len(trainings)} runs failed; the table is of the others\n" + "\n".join(failures)
        )


def _trainings(
    file: str, settings: list[str], variants: list[Variant], seeds: range, out: Path, start: list[str]
) -> list[Training]:
    """Seed by seed, so that all encodings have something early."""
    trainings = []
    unlike = {variant.trained: variant for variant in variants}
    for seed in seeds:
        for trained, variant in unlike.items():
            directory = out / trained.replace(":", "_") / f"seed-{seed}"
            own = [*settings, *variant.settings, f"training.seed={seed}", f"run.directory={directory}"]
            changes = [word for setting in own for word in ("--set", setting)]
            command = (*start, "--config", file, *changes, "--resume", "auto")
            trainings.append(Training(trained, load_config(file, own), command))
    return trainings


def _measured(training: Training, variants: list[Variant]) -> str:
    """Measure what has not been, and say what came out."""
    told = []
    for variant in variants:
        if variant.trained != training.trained:
            continue
        path = training.outcome(variant.scaling)
        if not path.exists():
            measure(training.config, training.checkpoint, variant.scaling).write(path)
        figures = ", ".join(f"{name} {value:.4g}" for name, value in Outcome.read(path).figures.items())
        told.append(f"{variant.scaling}: {figures}" if variant.scaling else figures)
    return "; ".join(told)


def _trained(variant: Variant, trainings: list[Training]) -> list[Trained]:
    """The variant's runs that are complete."""
    return [
        Trained(
            training.config,
            Outcome.read(training.outcome(variant.scaling)),
            training.directory / "metrics.jsonl",
            variant.scaling,
        )
        for training in trainings
        if training.trained == variant.trained and training.outcome(variant.scaling).exists()
    ]


def _first_difference(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """Path and both values of the first setting that matters for the result."""
    for section in ("training", "optimizer", "schedule", "evaluation"):
        for name, value in now[section].items():
            if before[section][name] != value:
                return f"{section}.{name}", before[section][name], value
    return None
