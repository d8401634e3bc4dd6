"""Ctrl-C on the public command: the step is finished, a checkpoint written, the exit clean, and the run goes on from there."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
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
from megatape.reliability.lease import Lease
from megatape.reliability.signals import STOPPING
from megatape.run_folder import RunFolder
from megatape.tools.ledger import prove
from megatape.training.callbacks.collection import Callbacks
from megatape.training.start import Start
from megatape.training.startup.build_trainer import build_trainer
from megatape.training.trainer import Trainer
from megatape.utils.json_lines import read_lines
from tests.helpers.processes.load import scaled
from tests.helpers.processes.workers import ROOT, Workers, free_port, run_workers
from tests.helpers.runs.run_data import open_run_data

START = "import sys; from megatape.commands.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def words(raw_config: dict[str, Any], tmp_path: Path) -> list[str]:
    """A command that trains for 1000 steps."""
    raw_config["training"]["steps"] = 1000
    config = tmp_path / "config.json"
    config.write_text(json.dumps(raw_config))
    return ["pretrain", "--config", str(config)]


def begun(raw_config: dict[str, Any]) -> bool:
    """Whether the run has made a step."""
    log = Path(raw_config["run"]["directory"]) / "metrics.jsonl"
    return log.exists() and bool(log.read_text())


def check_stopped(run: Path, output: str) -> Path:
    assert "stopped on request after step" in output
    steps = len((run / "metrics.jsonl").read_text().splitlines())
    checkpoint = run / "checkpoints" / f"step-{steps:08d}"
    assert json.loads((checkpoint / "state.json").read_text())["step"] == steps < 1000, output
    return checkpoint


def run_and_signal_again(words: list[str]) -> int:
    """Run the command, then repeat signals to its process as launchers and process groups do."""
    status = main(words)
    for number in STOPPING:
        os.kill(os.getpid(), number)
    return status


def stop(words: list[str], raw_config: dict[str, Any], folder: Path, number: signal.Signals) -> tuple[int | None, str]:
    """Run the command in one process and send it a signal after its first step. Returns its exit status and what it printed."""
    with Workers(words, 1, folder, command="tests.end_to_end.test_interrupt:run_and_signal_again") as workers:
        workers.wait(lambda: begun(raw_config) or not workers.running(), "the first step", 90)
        workers.signal(number)
        (status,) = workers.statuses()
    return status, workers.logs()


def test_ctrl_c_leaves_a_checkpoint(words: list[str], raw_config: dict[str, Any], tmp_path: Path) -> None:
    run = Path(raw_config["run"]["directory"])
    status, output = stop(words, raw_config, tmp_path / "first", signal.SIGINT)
    assert status == 0, output
    checkpoint = check_stopped(run, output)
    steps = int(checkpoint.name.removeprefix("step-"))

    more = [*words, "--resume", "auto", "--set", f"training.steps={steps + 2}"]
    with Workers(more, 1, tmp_path / "second") as workers:
        assert workers.statuses() == [0], workers.logs()
    assert f"resumed from {checkpoint}" in workers.logs()
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == list(range(1, steps + 3))
    events = [(event["event"], event["step"]) for _, event in read_lines(run / "events.jsonl")]
    first = (("checkpoint", steps), ("stopped", steps))
    last = (("checkpoint", steps + 2), ("finished", steps + 2))
    assert events == [("started", 0), *first, ("resumed", steps), *last]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_schedulers_signal_asks_for_another_start(
    words: list[str], raw_config: dict[str, Any], tmp_path: Path, number: signal.Signals
) -> None:
    status, output = stop(words, raw_config, tmp_path / "workers", number)
    assert status == ExitStatus.UNFINISHED, output
    check_stopped(Path(raw_config["run"]["directory"]), output)


def test_a_request_costs_no_step(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """A signal that reaches one rank before the first step, in a save or in an evaluation stops all ranks right there."""
    raw_config["training"]["steps"] = 9
    raw_config["checkpoint"] = {"interval": 4}
    raw_config["evaluation"]["interval"] = 3
    for results in run_workers("tests.end_to_end.test_interrupt:ask_in", 2, raw_config, tmp_path / "workers"):
        assert results == {"__enter__": [True, 0], "save": [True, 4], "evaluate": [True, 3], "nohup": [False, 9]}
    root = Path(raw_config["run"]["directory"])
    saved = {name: [path.name for path in (root / name).glob("checkpoints/*")] for name in ("__enter__", "save", "evaluate")}
    assert saved == {"__enter__": [], "save": ["step-00000004"], "evaluate": ["step-00000003"]}


@pytest.mark.slow
def test_a_request_costs_no_evaluation(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """A signal in a step that is to be evaluated, and another at the start that follows: in the end metrics.jsonl, TensorBoard
    and the position views have the evaluation as if nobody had asked."""
    raw_config["training"]["steps"] = 6
    raw_config["evaluation"]["interval"] = 2
    for results in run_workers("tests.end_to_end.test_interrupt:ask_in_steps", 2, raw_config, tmp_path / "workers"):
        assert results == {"stopped": [[True, 2], [True, 2], [True, 4], [False, 6]], "straight": [[False, 6]]}
    folders = [RunFolder(Path(raw_config["run"]["directory"]) / name) for name in ("stopped", "straight")]
    stopped, straight = ([entry for _, entry in read_lines(folder.metrics)] for folder in folders)
    for entry in stopped + straight:
        del entry["seconds"], entry["peak_memory"]
    assert stopped == straight and [entry["step"] for entry in straight if "validation_loss" in entry] == [2, 4, 6]
    views = [[path.read_bytes() for path in folder.list_position_views().values()] for folder in folders]
    assert views[0] == views[1] and len(views[0]) == 3
    board = EventAccumulator(str(folders[0].tensorboard))
    board.Reload()
    assert [event.step for event in board.Scalars("loss/validation")] == [2, 4, 6]
    assert "steps:     1 to 6, samples 0 to 47, none missing" in list(prove(folders[0].directory))


def ask_in_steps(raw: dict[str, Any], topology: Topology) -> dict[str, list[Any]]:
    """For each start of two runs: whether it is to be started again, and how far it came."""
    results: dict[str, list[Any]] = {}
    for name, steps in {"stopped": [2, 2, 4, 0], "straight": [0]}.items():
        config = parse_config(raw | {"run": {"directory": f"{raw['run']['directory']}/{name}"}}, name)
        for step in steps:  # in which one rank gets a signal; before the first one, if that step has been made
            run = build_trainer(
                config, open_run_data(config), topology, Lease(RunFolder(Path(config.run.directory)).lease), Start("auto")
            )
            ask = signaling(lambda *_: None, signal.SIGTERM, topology.rank == 1)
            hook = partial(lambda run, step, ask, *_: run.state.step + 1 == step and ask() or None, run, step, ask)
            run.engine.deepspeed.module.register_forward_pre_hook(hook)
            begin = signaling(Callbacks.on_start, signal.SIGTERM, topology.rank == 1 and run.state.step == step > 0)
            with patch.object(Callbacks, "on_start", begin):
                results.setdefault(name, []).append([run.train(), run.state.step])
    return results


def ask_in(raw: dict[str, Any], topology: Topology) -> dict[str, Any]:
    """For each place where a signal comes: whether the run is to be started again, and how far it came."""
    results = {}
    root = Path(raw["run"]["directory"])
    owners = {"__enter__": Callbacks, "save": CheckpointManager, "evaluate": Trainer, "nohup": CheckpointManager}
    for place, owner in owners.items():
        raw["run"]["directory"] = str(root / place)
        config = parse_config(raw, place)
        run = build_trainer(config, open_run_data(config), topology, Lease(RunFolder(Path(config.run.directory)).lease))
        if place == "nohup":
            ignoring = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        name, number = ("save", signal.SIGHUP) if place == "nohup" else (place, signal.SIGTERM)
        with patch.object(owner, name, signaling(getattr(owner, name), number, topology.rank == 1)):
            results[place] = [run.train(), run.state.step]
    signal.signal(signal.SIGHUP, ignoring)
    return results


def signaling(function: Callable[..., Any], number: signal.Signals, really: bool) -> Callable[..., Any]:
    """The function, which sends this process a signal before it begins, if `really`."""

    def wrapped(*arguments: Any) -> Any:
        if really:
            os.kill(os.getpid(), number)
        return function(*arguments)

    return wrapped


def test_a_closed_terminal_leaves_a_checkpoint(words: list[str], raw_config: dict[str, Any]) -> None:
    """The signal comes together with a terminal to which nothing can be written any more."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{START}", *words],
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        deadline = time.monotonic() + 120
        while not begun(raw_config):
            assert process.poll() is None and time.monotonic() < deadline
            os.read(ours, select.select([ours], [], [], 0.1)[0] and 2**16 or 0)
        os.close(ours)
        assert process.wait(60) == ExitStatus.UNFINISHED
    finally:
        process.kill()
        process.wait()
    run = Path(raw_config["run"]["directory"])
    steps = len((run / "metrics.jsonl").read_text().splitlines())
    assert [path.name for path in (run / "checkpoints").iterdir()] == [f"step-{steps:08d}"]


@pytest.mark.slow
def test_ctrl_c_under_the_deepspeed_launcher(words: list[str], raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Four ranks, two of them tensor-parallel ranks, which get the signal from the terminal and from their launcher: one
    checkpoint, and no process stays."""
    launcher = ["deepspeed", "--num_accelerators", "4", "--master_port", str(free_port())]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where the deepspeed command is
    process = subprocess.Popen(
        [*launcher, "launch/pretrain.py", *words[1:], "--set", "parallel.tp=2"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 180
        while not begun(raw_config) and process.poll() is None:
            assert time.monotonic() < deadline, "no first step within three minutes"
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        output = process.communicate(timeout=scaled(90))[0]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    check_stopped(Path(raw_config["run"]["directory"]), output)
