"""Pool that executes the runs of a study, several at a time."""

import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import torch

from megatape.data.training.run_data import open_data
from megatape.distributed.launch.launcher_logs import quiet_launcher
from megatape.errors import UserError, flag
from megatape.imports import arguments
from megatape.lab.study.execution.children import Children, Environment
from megatape.lab.study.execution.engines import EngineChoice
from megatape.lab.study.execution.one_process.group import RunGroup, finish_alone, make_groups, reason_against
from megatape.lab.study.execution.run import Run
from megatape.lab.study.execution.task_evaluation import TaskCommand
from megatape.utils.text.paragraphs import Line, Show
from megatape.utils.text.units import plural

# Launchers start scripts, not modules.
SCRIPT = Path(__file__).parents[3] / "__main__.py"
# Settings of glibc's allocator for runs on a CPU. Memory freed by a step stays allocated, in huge pages, because the next step
# needs all of it again.
HUGE_PAGES = ":".join(
    [
        "glibc.malloc.hugetlb=1",
        f"glibc.malloc.mmap_threshold={2**25}",
        f"glibc.malloc.trim_threshold={2**32}",
        f"glibc.malloc.top_pad={2**26}",
    ]
)


class RunPool:
    """Executes `jobs` runs at a time, each on its own GPU or with an equal share of the cores.

    Attributes:
        jobs: Number of parallel runs.
        launcher: Command that starts a Python script on all ranks and assigns their devices. None for one process per run.
        engine: Engine training the runs.
        environments: Environment of each parallel run.

    Raises:
        UserError: The machine has too few GPUs, or the engine has no use for the launcher.
    """

    def __init__(self, jobs: int, launcher: str | None, engine: EngineChoice = "processes") -> None:
        if engine == "one_process" and launcher:
            raise UserError(
                f"{flag('engine')} is one_process, which trains on one device without a launcher: remove one of them"
            )
        self.jobs = jobs
        self.launcher = launcher
        self.engine = engine
        self.environments = _environments(jobs, launcher)

    def pretrain_command(self, file: str, overrides: Iterable[str]) -> list[str]:
        """Return the command that trains a model, resuming from the newest checkpoint.

        Args:
            file: Configuration file.
            overrides: Values of --set.
        """
        if self.launcher:
            start = quiet_launcher(shlex.split(self.launcher))
        else:
            start = [sys.executable]
        options = []
        for override in overrides:
            options += ["--set", override]
        # A relative path might start with a hyphen.
        path = str(Path(file).absolute())
        return [*start, str(SCRIPT), "pretrain", *arguments(), "--config", path, *options, "--resume", "auto"]

    def evaluate_command(self, task: TaskCommand, checkpoint: Path, output: Path) -> list[str]:
        """Return the command that evaluates a checkpoint in one process, resuming an interrupted evaluation.

        Args:
            task: Task with its options.
            checkpoint: Folder of the checkpoint.
            output: Folder for results.
        """
        words = [task.task, str(checkpoint), "--output", str(output), *task.options]
        return [sys.executable, str(SCRIPT), "evaluate", *arguments(), *words]

    def finish(self, runs: Sequence[Run[Any]], out: Path, lock: IO[bytes], show: Show) -> list[str]:
        """Execute the unfinished runs. An exception, such as a KeyboardInterrupt, stops them.

        Args:
            runs: Runs of a study.
            out: Study folder.
            lock: Folder lock, for child processes to inherit.
            show: Called with progress messages.

        Returns:
            Error message of each failed run.

        Raises:
            UserError: A folder holds a run with other settings or other data. No run has started.
        """
        _check(runs)
        missing = sum(bool(run.missing()) for run in runs)
        total = plural(len(runs), "run")
        show(f"{total}, {missing} of them to do, {self.jobs} at a time; each logs to its log.txt in {out}")

        alone, groups, line = self._distribute(runs)
        if line is not None:
            show(Line(line))
        free: SimpleQueue[Environment] = SimpleQueue()
        for environment in self.environments:
            free.put(environment)
        children = Children(lock)
        failures = []
        with ThreadPoolExecutor(self.jobs) as threads:
            futures = [threads.submit(group.finish, children, free) for group in groups]
            futures += [threads.submit(finish_alone, run, children, free) for run in alone]
            try:
                for future in as_completed(futures):
                    for finished in future.result():
                        if finished.warning is not None:
                            show(Line(f"warning: {finished.warning}"))
                        if finished.error is None:
                            show(Line(finished.run.read_summary()))
                        else:
                            failures.append(finished.error)
                            show(Line(f"failed: {finished.error}"))
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                children.stop()
                raise
        return failures

    def _distribute(self, runs: Sequence[Run[Any]]) -> tuple[list[Run[Any]], list[RunGroup], str | None]:
        """Return the runs with processes of their own, groups of the others, and a line about the choice or None.

        Raises:
            UserError: The engine is one_process, and a run needs processes of its own.
        """
        uses_groups = self.engine == "one_process"
        if self.engine == "auto":
            # On GPUs, the engine has not been compared with `pretrain` yet.
            uses_groups = not self.launcher and not torch.cuda.is_available()
        if not uses_groups:
            return list(runs), [], None
        alone = []
        grouped = []
        reasons = []
        for run in runs:
            reason = reason_against(run)
            if reason is None or not run.missing():
                grouped.append(run)
                continue
            if self.engine == "one_process":
                raise UserError(
                    f"{flag('engine')} is one_process, but {run.name} needs processes of its own: {reason}; set it to auto"
                )
            alone.append(run)
            reasons.append(f"{run.name}: {reason}")
        line = None
        if reasons:
            line = f"{plural(len(alone), 'run')} by processes of their own; the first is {reasons[0]}"
        return alone, make_groups(grouped, self.jobs, torch.cuda.is_available()), line


def default_jobs(launcher: str | None) -> int:
    """Return the number of small models to train at a time: one per GPU, or per core without GPUs. One with a launcher."""
    if launcher:
        return 1
    return torch.cuda.device_count() or len(os.sched_getaffinity(0))


def threads_of_run(jobs: int) -> str:
    """Return the threads per run for `jobs` parallel runs on a CPU: MEGATAPE_THREADS, or an equal share of the cores."""
    cores = len(os.sched_getaffinity(0))
    share = max(1, cores // jobs)
    return os.environ.get("MEGATAPE_THREADS", str(share))


def _check(runs: Sequence[Run[Any]]) -> None:
    """Raise UserError if a run directory holds another run. Runs with the same data path share the data."""
    configs = {run.config.data.path: run.config for run in runs}
    fingerprints = {}
    for path, config in configs.items():
        data = open_data(config.data, config.training, config.evaluation, config.model.vocab_size)
        fingerprints[path] = data.fingerprints
    for run in runs:
        run.check(fingerprints[run.config.data.path])


def _environments(jobs: int, launcher: str | None) -> list[Environment]:
    """Return an environment for each parallel run: its own GPU, or its threads and the allocator settings.

    Raises:
        UserError: There are too few GPUs, or a launcher would start several runs at a time.
    """
    if launcher:
        if jobs > 1:
            raise UserError(
                f"{flag('jobs')} is {jobs}, but a run started by {flag('launcher')} takes the whole machine: remove one of them"
            )
        return [{}]
    gpus = _visible_gpus()
    if gpus:
        if jobs > len(gpus):
            raise UserError(
                f"{flag('jobs')} is {jobs}, but this machine shows {plural(len(gpus), 'GPU')}, and every run needs its own: "
                f"lower {flag('jobs')}"
            )
        return [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus[:jobs]]
    threads = threads_of_run(jobs)
    environment = {
        "MEGATAPE_THREADS": threads,
        "OMP_NUM_THREADS": threads,
        "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", HUGE_PAGES),
    }
    return [environment] * jobs


def _visible_gpus() -> list[str]:
    """Return the value of CUDA_VISIBLE_DEVICES for each GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return visible.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]
