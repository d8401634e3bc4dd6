"""Runs of a study, in processes of their own: trained by `pretrain`, then measured.

A run whose results exist is skipped, and one that was stopped continues from its last checkpoint, so the same command goes on
where it was stopped.

The process that measures a run calls `main` with FILE MODULE:FUNCTION ARGUMENT ...
"""

import json
import logging
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, Generic, Self, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError

from megatape.checkpoint.compatibility import check_same_run
from megatape.checkpoint.reader import CheckpointReader
from megatape.config import Config, differences, save_config
from megatape.data.training.mixture import open_data
from megatape.data.training.selection import EARLIER_SELECTION, Selection
from megatape.distributed.launchers import quiet_launcher
from megatape.errors import ExitStatus, UserError, path_errors
from megatape.imports import arguments
from megatape.lab.processes import child
from megatape.run_folder import RunFolder
from megatape.utils.files import first_fault, json_content, locked, read_json, read_regular, write_atomically
from megatape.utils.options import Line
from megatape.utils.python_process import python_command
from megatape.utils.units import plural

Environment = dict[str, str]

LOG = logging.getLogger(__name__)

SCRIPT = Path(__file__).parents[2] / "__main__.py"  # launchers take a script
# glibc's allocator, for runs on a CPU: keep the memory that a step frees, in huge pages, since the next step needs all of it.
HUGE_PAGES = (
    f"glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold={2**25}:glibc.malloc.trim_threshold={2**32}:"
    f"glibc.malloc.top_pad={2**26}"
)
VALIDATION_LOSS = "validation loss"  # Name of a figure. Names of the figures of inputs begin with it.
PERPLEXITY = "perplexity at "  # Prefix of the names of perplexities by length.
DIVERGED = "diverged.txt"  # in the folder of a run whose weights are lost: the same settings would lose them again
GRACE = 60  # seconds that a launcher's ranks have to exit after it


@dataclass(frozen=True)
class Result:
    """Measurements of a trained model; subclasses add theirs.

    Attributes:
        config: Resolved configuration of the training.
        fingerprints: Hashes of its data and tokenizer.
    """

    config: Config
    fingerprints: dict[str, str]

    @property
    def summary(self) -> str:
        """The measurements in one line."""
        raise NotImplementedError

    def write(self, path: Path) -> None:
        """Write the file atomically: if it exists, it is complete."""
        content = TypeAdapter(type(self)).dump_python(self, mode="json")
        write_atomically(path, json_content(content, str(path), indent=2) + b"\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` wrote. Raises UserError if the file is corrupted."""
        try:
            return TypeAdapter(cls).validate_json(json.dumps(read_json(path)))
        except ValueError as error:
            fault = first_fault(error) if isinstance(error, ValidationError) else error
            raise UserError(f"{path} is corrupted ({fault}): remove it and run the command again") from None


def measuring(path: Path, measure: Callable[..., Result], *values: Any) -> list[str]:
    """The command that calls `measure` with values, which JSON must be able to hold, and writes its result to `path`."""
    target = f"{measure.__module__}:{measure.__name__}"
    return python_command(__name__, str(path), target, *map(json.dumps, values))


@dataclass(frozen=True)
class Outcome(Result):
    """Results of a trained model.

    Attributes:
        scaling: Kind of model.scaling in the evaluation, or None.
        figures: Metrics by name, the columns of the table.
        losses: Mean training loss (nats) of equal parts of the run, by the last step of each.
        curve: A metric by length in tokens or digits.
        axes: Names of length and metric.
        selection: Selection of the text for validation loss and perplexity from the validation split.
    """

    scaling: str | None
    figures: dict[str, float]
    losses: dict[int, float]
    curve: dict[int, float]
    axes: tuple[str, str]
    selection: Selection = EARLIER_SELECTION

    @property
    def seed(self) -> int:
        """training.seed of the run."""
        return self.config.training.seed

    @property
    def summary(self) -> str:
        """The metrics in one line."""
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items())
        return f"{self.scaling}: {metrics}" if self.scaling else metrics


class Stopped(Exception):
    """`Children.stop` was called: no command starts any more."""


class Children:
    """Runs commands for several threads."""

    def __init__(self, lock: IO[bytes]) -> None:
        self._lock = lock
        self._mutex = threading.Lock()
        self._groups: set[int] = set()
        self._stopped = False

    def run(self, command: list[str], environment: dict[str, str], log: Path) -> int:
        """Run a command and append its output to `log`.

        Returns:
            Its exit status, once its whole group has exited.

        Raises:
            Stopped: After `stop`.
        """
        with log.open("a", encoding="utf-8") as file, ExitStack() as stack:
            with self._mutex:
                if self._stopped:
                    raise Stopped
                running = child(command, grace=GRACE, env=environment, stdout=file, pass_fds=[self._lock.fileno()])
                process = stack.enter_context(running)
                self._groups.add(process.pid)
            status = process.wait()  # a launcher may exit before its ranks do
        with self._mutex:
            self._groups.discard(process.pid)
        return status

    def stop(self) -> None:
        """Start no more commands, and interrupt those that run."""
        with self._mutex:
            self._stopped = True
            for group in self._groups:
                with suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGINT)


@contextmanager
def locked_study(folder: Path, wait: bool = False) -> Iterator[IO[bytes]]:
    """Create the folder if needed and lock it for this process and the children that inherit the lock file.

    Args:
        folder: Folder of a study.
        wait: Wait, and say so, while another process holds the lock.

    Raises:
        UserError: Another process holds the lock, unless `wait`.
    """
    file = folder / "lock"
    with ExitStack() as stack:
        with path_errors():
            try:
                lock = stack.enter_context(locked(file, wait=False))
            except BlockingIOError:
                held = f"{folder} is in use by another study, or by runs it left behind: "
                if not wait:
                    raise UserError(f"{held}wait for them, stop them, or choose another folder") from None
                LOG.warning("%swaiting until they end", held)
                lock = stack.enter_context(locked(file))
        yield lock


class RunsFailed(ChildProcessError):
    """Some runs of a study failed; the others are complete."""


RunT = TypeVar("RunT", bound=Result)


@dataclass(frozen=True)
class Run(Generic[RunT]):
    """A model of a study.

    Attributes:
        name: Name in messages.
        config: Configuration that `pretrain` makes of its command; run.directory is the run's folder.
        train: Command that trains it to its last step, from where it is; None if it is measured without training.
        measure: By result file, the function that returns the result, and its arguments.
        read: Reads a result file.
    """

    name: str
    config: Config
    train: list[str] | None
    measure: dict[Path, tuple[Any, ...]]
    read: Callable[[Path], RunT]

    @property
    def folder(self) -> RunFolder:
        """The run's folder."""
        return RunFolder(Path(self.config.run.directory))

    def missing(self) -> list[Path]:
        """Results that do not exist."""
        return [path for path in self.measure if not path.exists()]

    def results(self) -> list[RunT]:
        """Results that exist."""
        return [self.read(path) for path in self.measure if path.exists()]

    def check(self, fingerprints: dict[str, str]) -> None:
        """Raise UserError if the run's folder holds one with other settings or, by the fingerprints, with other data."""
        for path in self.measure:
            if path.exists():
                result = self.read(path)
                self._check_origin(path, result.config, result.fingerprints, fingerprints)
        for path in self.folder.list_checkpoints():
            try:
                reader = CheckpointReader(path)
            except (ValueError, OSError):
                continue  # corrupted: training resumes from an older one, with a warning
            self._check_origin(path, reader.config, reader.state["fingerprints"], fingerprints)

    def finish(self, children: Children, environments: SimpleQueue[Environment]) -> None:
        """Train and measure what is missing, in the next free environment. Raises RunsFailed with the error from the log."""
        if not self.missing():
            return
        environment = environments.get()
        try:
            self.folder.directory.mkdir(parents=True, exist_ok=True)
            checkpoint = self.folder.checkpoint(self.config.training.steps)
            if self.train is None:
                save_config(self.config, self.folder.config)
            elif not _is_whole(checkpoint):
                self._run("training", children, self.train, environment, checkpoint)
            for path in self.missing():
                self._run("measuring", children, measuring(path, *self.measure[path]), environment, path)
        finally:
            environments.put(environment)

    def summary(self) -> str:
        """The results in one line."""
        return f"{self.name}: {'; '.join(result.summary for result in self.results())}"

    def _run(self, what: str, children: Children, command: list[str], environment: Environment, product: Path) -> None:
        log = self.folder.log
        status = children.run(command, environment, log)
        if not product.exists():
            lines = read_regular(log).decode(errors="replace").splitlines()
            # Launchers log more lines after the one that names the error.
            errors = [line for line in lines if line.startswith("error")] or lines or ["nothing"]
            if status == ExitStatus.DIVERGED:
                (self.folder.directory / DIVERGED).write_text(f"{errors[-1]}\n", encoding="utf-8")
            raise RunsFailed(f"{self.name}: {what} exited with status {status}; {log} says: {errors[-1]}")

    def _check_origin(self, origin: Path, theirs: Config, recorded: dict[str, str], fingerprints: dict[str, str]) -> None:
        check_same_run(origin, theirs, recorded, self.config, fingerprints)
        for field in differences(theirs, self.config):
            if field.rule.is_compared:
                raise UserError(
                    f"{origin} was trained with {field.path} {field.theirs}, now it is {field.ours}: use the former, or choose "
                    "another `out`"
                )


def _is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint is there, with files of the recorded sizes."""
    try:
        CheckpointReader(checkpoint)
    except (ValueError, OSError):
        return False
    return True


class RunPool:
    """Trains `jobs` runs at a time, each on a GPU of its own or with an equal share of the cores.

    Attributes:
        jobs: Number of runs in parallel.
        launcher: Command that starts a Python script on all ranks, and manages their devices itself; None: one process per run.
    """

    def __init__(self, jobs: int, launcher: str | None) -> None:
        """Raises UserError if the machine has too few GPUs."""
        self.jobs = jobs
        self.launcher = launcher
        self._environments: SimpleQueue[Environment] = SimpleQueue()
        if launcher and jobs > 1:
            raise UserError(f"jobs is {jobs}, but a run started by `launcher` takes the whole machine: remove one of them")
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = shown.split(",") if shown else [str(number) for number in range(torch.cuda.device_count())]
        if not launcher and gpus and jobs > len(gpus):
            raise UserError(
                f"jobs is {jobs}, but this machine shows {plural(len(gpus), 'GPU')}, and every run needs its own: lower `jobs`"
            )
        for job in range(jobs):
            own: Environment = {}
            if not launcher and gpus:
                own["CUDA_VISIBLE_DEVICES"] = gpus[job]
            elif not launcher:
                own = dict.fromkeys(("MEGATAPE_THREADS", "OMP_NUM_THREADS"), threads_of_run(jobs))
                own["GLIBC_TUNABLES"] = os.environ.get("GLIBC_TUNABLES", HUGE_PAGES)
            self._environments.put(own)

    def pretrain(self, file: str, settings: Iterable[str]) -> list[str]:
        """The command that trains with a configuration and overrides of it, from the newest checkpoint if there is one."""
        start = [sys.executable]
        if self.launcher:
            start = quiet_launcher(shlex.split(self.launcher))
        overrides = [word for each in settings for word in ("--set", each)]
        path = str(Path(file).absolute())  # a relative path may begin with -
        return [*start, str(SCRIPT), "pretrain", *arguments(), "--config", path, *overrides, "--resume", "auto"]

    def finish(self, runs: Sequence[Run[Any]], out: Path, lock: IO[bytes]) -> Generator[str, None, list[str]]:
        """Train and measure the missing runs; yields progress messages and returns an error for each run that failed.

        lock: of the study's folder `out`, which children keep. When the generator is stopped, so are they. Raises UserError
        before the first run if a folder holds one with other settings or data.
        """
        configs = {run.config.data.path: run.config for run in runs}
        fingerprints = {data: open_data(config).fingerprints for data, config in configs.items()}
        for run in runs:
            run.check(fingerprints[run.config.data.path])
        failures = []
        with ThreadPoolExecutor(self.jobs) as pool:
            missing = sum(bool(run.missing()) for run in runs)
            total = plural(len(runs), "run")
            yield f"{total}, {missing} of them to do, {self.jobs} at a time; each logs to its log.txt in {out}"
            children = Children(lock)
            running = {pool.submit(run.finish, children, self._environments): run for run in runs}
            try:
                for done in as_completed(running):
                    try:
                        done.result()
                        yield Line(running[done].summary())
                    except RunsFailed as error:
                        failures.append(str(error))
                        yield Line(f"failed: {error}")
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                children.stop()
                raise
        return failures


def check_all(failures: list[str], runs: Sequence[Run[Any]]) -> None:
    """Raise RunsFailed if some of the runs failed."""
    if failures:
        raise RunsFailed(
            f"{len(failures)} of {plural(len(runs), 'run')} failed; the table has the others\n" + "\n".join(failures)
        )


def default_jobs(launcher: str | None) -> int:
    """Runs at a time that suit small models: one for each GPU, or else for each core. One with a launcher."""
    return 1 if launcher else torch.cuda.device_count() or len(os.sched_getaffinity(0))


def threads_of_run(jobs: int) -> str:
    """Threads of each of `jobs` parallel runs on a CPU: MEGATAPE_THREADS, or else an equal share of the cores."""
    return os.environ.get("MEGATAPE_THREADS", str(max(1, len(os.sched_getaffinity(0)) // jobs)))


def main(words: list[str]) -> int:
    """Call a function and write its result to a file. Returns the exit status.

    Args:
        words: Path of the file, MODULE:FUNCTION, and the function's arguments as JSON.
    """
    path, target, *values = words
    module, _, function = target.partition(":")
    try:
        result: Result = getattr(import_module(module), function)(*map(json.loads, values))
        result.write(Path(path))
    except UserError as failure:
        LOG.error("error: %s", failure)
        return failure.status
    return 0
