"""After Ctrl-C or a scheduler's signal, a run finishes the step, writes a checkpoint, and resumes from it."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from megatape.checkpoint.manager import CheckpointManager
from megatape.commands.cli.main import main
from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.errors import ExitStatus
from megatape.reliability.signals import STOPPING
from megatape.run_folder import RunFolder
from megatape.tools.ledger import prove
from megatape.training.callbacks.collection import Callbacks
from megatape.training.start import Start
from megatape.training.trainer import Trainer
from tests.helpers.processes.launcher import start_deepspeed
from tests.helpers.processes.load import scaled
from tests.helpers.processes.waiting import wait_until
from tests.helpers.processes.workers import ROOT, Workers, run_workers
from tests.helpers.runs.run_folders import comparable_metrics, num_recorded_steps, read_entries
from tests.helpers.runs.trainers import trainer_without_lease

MODULE = "tests.end_to_end.test_interrupt"
# Runs a megatape command with standard input as its terminal
START_IN_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from megatape.commands.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def words(raw_config: dict[str, Any], tmp_path: Path) -> list[str]:
    """Return a command that trains for 1000 steps."""
    raw_config["training"]["steps"] = 1000
    config = tmp_path / "config.json"
    config.write_text(json.dumps(raw_config))
    return ["pretrain", "--config", str(config)]


@pytest.fixture
def folder(raw_config: dict[str, Any]) -> RunFolder:
    return RunFolder(Path(raw_config["run"]["directory"]))


def check_stopped(folder: RunFolder, output: str) -> int:
    """Check that a run stopped early, leaving a checkpoint of its last step. Returns the step."""
    assert "stopped on request after step" in output
    last_step = num_recorded_steps(folder)
    assert last_step < 1000, output
    state = json.loads((folder.checkpoint(last_step) / "state.json").read_text())
    assert state["step"] == last_step, output
    return last_step


def run_and_signal_again(words: list[str]) -> int:
    """Run the command and signal its process repeatedly, as if a launcher and a process group both passed the signal on."""
    status = main(words)
    for number in STOPPING:
        os.kill(os.getpid(), number)
    return status


def stop(words: list[str], folder: RunFolder, logs: Path, number: signal.Signals) -> tuple[int | None, str]:
    """Run the command on one rank and send it a signal after its first step. Returns its exit status and its output."""
    with Workers(words, 1, logs, command=f"{MODULE}:run_and_signal_again") as workers:
        workers.wait(lambda: num_recorded_steps(folder) > 0 or not workers.running(), "the first step", 90)
        workers.signal(number)
        (status,) = workers.statuses()
    return status, workers.logs()


def test_ctrl_c_leaves_a_checkpoint(words: list[str], folder: RunFolder, tmp_path: Path) -> None:
    status, output = stop(words, folder, tmp_path / "first", signal.SIGINT)

    assert status == 0, output
    stopped_at = check_stopped(folder, output)

    last_step = stopped_at + 2
    resume = [*words, "--resume", "auto", "--set", f"training.steps={last_step}"]
    with Workers(resume, 1, tmp_path / "second") as workers:
        assert workers.statuses() == [0], workers.logs()

    assert f"resumed from {folder.checkpoint(stopped_at)}" in workers.logs()
    assert [entry["step"] for entry in read_entries(folder.metrics)] == list(range(1, last_step + 1))
    events = [(event["event"], event["step"]) for event in read_entries(folder.events)]
    assert events == [
        ("started", 0),
        ("checkpoint", stopped_at),
        ("stopped", stopped_at),
        ("resumed", stopped_at),
        ("checkpoint", last_step),
        ("finished", last_step),
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_schedulers_signal_asks_for_another_start(
    words: list[str], folder: RunFolder, tmp_path: Path, number: signal.Signals
) -> None:
    status, output = stop(words, folder, tmp_path / "workers", number)

    assert status == ExitStatus.UNFINISHED, output
    check_stopped(folder, output)


def test_a_request_costs_no_step(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """A signal that reaches one rank before the first step, in a save or in an evaluation stops all ranks right there."""
    raw_config["training"]["steps"] = 9
    raw_config["checkpoint"] = {"interval": 4}
    raw_config["evaluation"]["interval"] = 3

    results_by_rank = run_workers(f"{MODULE}:signal_in_each_place", 2, raw_config, tmp_path / "workers")

    for results in results_by_rank:
        assert results == {"__enter__": [True, 0], "save": [True, 4], "evaluate": [True, 3], "nohup": [False, 9]}
    root = Path(raw_config["run"]["directory"])
    saved = {}
    for place in ("__enter__", "save", "evaluate"):
        saved[place] = [path.name for path in (root / place).glob("checkpoints/*")]
    assert saved == {"__enter__": [], "save": ["step-00000004"], "evaluate": ["step-00000003"]}


def signal_in_each_place(raw: dict[str, Any], topology: Topology) -> dict[str, tuple[bool, int]]:
    """Train runs with rank 1 getting a signal when a method starts, or SIGHUP under nohup.

    Returns:
        Where the signal came -> whether to start the run again, and its last step.
    """
    results = {}
    root = Path(raw["run"]["directory"])

    def train(place: str, owner: type, method: str, number: signal.Signals) -> None:
        raw["run"]["directory"] = str(root / place)
        config = parse_config(raw, place)
        run = trainer_without_lease(config, topology)
        if place == "nohup":
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        function = getattr(owner, method)
        if topology.rank == 1:
            function = after_signal(function, number)
        with patch.object(owner, method, function):
            is_unfinished = run.train()
        results[place] = (is_unfinished, run.progress.step)

    train("__enter__", Callbacks, "__enter__", signal.SIGTERM)
    train("save", CheckpointManager, "save", signal.SIGTERM)
    train("evaluate", Trainer, "evaluate", signal.SIGTERM)
    before_nohup = signal.getsignal(signal.SIGHUP)
    train("nohup", CheckpointManager, "save", signal.SIGHUP)
    signal.signal(signal.SIGHUP, before_nohup)
    return results


def after_signal(function: Callable[..., Any], number: signal.Signals) -> Callable[..., Any]:
    """Return a function that sends this process a signal, then calls `function`."""

    def signal_and_call(*arguments: Any) -> Any:
        os.kill(os.getpid(), number)
        return function(*arguments)

    return signal_and_call


@pytest.mark.slow
def test_a_request_costs_no_evaluation(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """A run is signaled in a step that has to be evaluated, and again at its next start.

    In the end metrics.jsonl, TensorBoard and the position views are the same as without signals.
    """
    raw_config["training"]["steps"] = 6
    raw_config["evaluation"]["interval"] = 2

    results_by_rank = run_workers(f"{MODULE}:signal_in_steps", 2, raw_config, tmp_path / "workers")

    for results in results_by_rank:
        assert results == {"stopped": [[True, 2], [True, 2], [True, 4], [False, 6]], "straight": [[False, 6]]}
    root = Path(raw_config["run"]["directory"])
    stopped = RunFolder(root / "stopped")
    straight = RunFolder(root / "straight")
    straight_metrics = comparable_metrics(straight)
    assert comparable_metrics(stopped) == straight_metrics
    assert [entry["step"] for entry in straight_metrics if "validation_loss" in entry] == [2, 4, 6]

    straight_views = position_views(straight)
    assert position_views(stopped) == straight_views
    assert len(straight_views) == 3

    board = EventAccumulator(str(stopped.tensorboard))
    board.Reload()
    assert [event.step for event in board.Scalars("loss/validation")] == [2, 4, 6]
    assert "steps:     1 to 6, samples 0 to 47, none missing" in prove(stopped.directory)


def position_views(folder: RunFolder) -> list[bytes]:
    return [path.read_bytes() for path in folder.list_position_views().values()]


def signal_in_steps(raw: dict[str, Any], topology: Topology) -> dict[str, list[tuple[bool, int]]]:
    """Train two runs, signaling rank 1 in one of them at three of four starts.

    Returns:
        Name of the run -> for each start, whether to start it again, and its last step.
    """
    root = Path(raw["run"]["directory"])
    results = {}
    # A signal comes in the step, or before the first step of the start if the step was made by an earlier one. 0: no signal.
    for name, signaled_steps in {"stopped": [2, 2, 4, 0], "straight": [0]}.items():
        config = parse_config(raw | {"run": {"directory": str(root / name)}}, name)
        results[name] = [train_with_signal(config, topology, step) for step in signaled_steps]
    return results


def train_with_signal(config: Any, topology: Topology, signaled_step: int) -> tuple[bool, int]:
    run = trainer_without_lease(config, topology, Start("auto"))

    def signal_in_step(*_: Any) -> None:
        if topology.rank == 1 and run.progress.step + 1 == signaled_step:
            os.kill(os.getpid(), signal.SIGTERM)

    run.engine.deepspeed_engine.module.register_forward_pre_hook(signal_in_step)
    on_start = Callbacks.on_start
    if topology.rank == 1 and run.progress.step == signaled_step > 0:
        on_start = after_signal(on_start, signal.SIGTERM)
    with patch.object(Callbacks, "on_start", on_start):
        is_unfinished = run.train()
    return is_unfinished, run.progress.step


def test_a_closed_terminal_leaves_a_checkpoint(words: list[str], folder: RunFolder) -> None:
    """The signal arrives when the terminal can no longer be written to."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", START_IN_TERMINAL, *words],
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)

    def has_begun() -> bool:
        """Whether there is a step. Reads the output, so that the process does not wait for a full terminal."""
        readable, _, _ = select.select([ours], [], [], 0.1)
        if readable:
            os.read(ours, 2**16)
        return num_recorded_steps(folder) > 0

    try:
        wait_until(has_begun, "the first step", 120, process=process, interval=0.0)
        os.close(ours)
        assert process.wait(60) == ExitStatus.UNFINISHED
    finally:
        process.kill()
        process.wait()

    last_step = num_recorded_steps(folder)
    assert list(folder.checkpoints.iterdir()) == [folder.checkpoint(last_step)]


@pytest.mark.slow
def test_ctrl_c_under_the_deepspeed_launcher(words: list[str], folder: RunFolder) -> None:
    """Four ranks, two of them tensor-parallel, get the signal from the terminal and from their launcher.

    They leave one checkpoint, and no process stays.
    """
    launcher = start_deepspeed(4, [*words[1:], "--set", "parallel.tp=2"], subprocess.PIPE)
    try:
        wait_until(lambda: num_recorded_steps(folder) > 0 or launcher.poll() is not None, "the first step", 180, interval=0.1)
        os.killpg(launcher.pid, signal.SIGINT)
        output, _ = launcher.communicate(timeout=scaled(90))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGKILL)
    check_stopped(folder, output)
