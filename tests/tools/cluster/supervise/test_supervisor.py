"""A failed run is started again by `megatape supervise` while it advances."""

import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from megatape.errors import UserError
from megatape.run_folder import RunFolder, read_metrics
from megatape.tools.cluster.restarts import SUPERVISOR_POLICY
from megatape.tools.cluster.supervise.supervised_command import SupervisedCommand
from megatape.tools.cluster.supervise.supervisor import supervise
from megatape.utils.files.json_lines import read_lines
from tests.helpers.cluster.restarted_runs import CASES, launched, leave_invalid_checkpoints, prepare_run, starts, trainer
from tests.helpers.processes.command import Command
from tests.helpers.processes.waiting import wait_until
from tests.helpers.processes.workers import ROOT, free_port

SUPERVISOR = """
import os, pathlib, signal, sys
from megatape.run_folder import RunFolder
from functools import partial
from megatape.tools.cluster.supervise.supervised_command import SupervisedCommand
from megatape.tools.cluster.supervise.supervisor import supervise
status = supervise(partial(SupervisedCommand, sys.argv[2:]), RunFolder(pathlib.Path(sys.argv[1])), 3, ends_process=True)
os.kill(os.getpid(), signal.SIGTERM)  # process groups and schedulers repeat signals
sys.exit(status)
"""
# Launcher whose ranks record the end of the run, as on SIGTERM or Ctrl-C. The launcher itself reports another status.
STOPPED_LAUNCHER = """
import json, pathlib, signal, sys, time
folder, event, step, status = sys.argv[1:]
run = pathlib.Path(folder)
def end(*_):
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    with open(run / "events.jsonl", "a") as events:
        print(json.dumps({"event": event, "step": int(step)}), file=events)
    sys.exit(int(status))
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, end)
(run / "asleep").touch()
time.sleep(60)
"""


def starts_so_far(folder: RunFolder) -> int:
    """Return the number of starts."""
    if not (folder.directory / "starts").exists():
        return 0
    return len(starts(folder))


def command_of(words: list[str]) -> Callable[[], SupervisedCommand]:
    """Return a function that starts a command."""
    return partial(SupervisedCommand, words)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return prepare_run(tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_supervise(folder: RunFolder, name: str) -> None:
    lines, allowed, status, number = CASES[name]
    policy = dataclasses.replace(SUPERVISOR_POLICY, pause=0)
    assert supervise(command_of(trainer(folder, lines)), folder, allowed, policy=policy) == status
    assert len(starts(folder)) == number


def test_missing_command(folder: RunFolder) -> None:
    with pytest.raises(UserError, match="'nosuch' cannot be started .*No such file or directory.*: give the command"):
        supervise(command_of(["nosuch"]), folder, 1)


def test_invalid_checkpoints_are_no_progress(folder: RunFolder) -> None:
    leave_invalid_checkpoints(folder)
    assert supervise(command_of(trainer(folder, ["1 340", "1 350", "1 360", "0 380"])), folder, 9) == 0


@pytest.mark.parametrize(("event", "cause"), [("failed", "rank 0 failed: out of luck"), ("stopped", "sh ended with status 1")])
def test_the_first_cause_is_shown(folder: RunFolder, caplog: pytest.LogCaptureFixture, event: str, cause: str) -> None:
    """A command that cannot start is tried a few times. Later failures may be consequences of the first one."""
    words = trainer(folder, ["1 0", "3 0"])
    policy = dataclasses.replace(SUPERVISOR_POLICY, final=(0,), max_idle_starts=2)
    record = json.dumps({"event": event, "step": 0, "detail": "rank 0 failed: out of luck"})

    def start() -> SupervisedCommand:
        if not starts_so_far(folder):
            folder.events.write_text("")
            shell = f"{shlex.join(words)}; status=$?; echo {shlex.quote(record)} >> {folder.events}; exit $status"
            return SupervisedCommand(["sh", "-c", shell])
        return SupervisedCommand(words)

    with caplog.at_level("WARNING", "megatape"):
        assert supervise(start, folder, 9, policy=policy) == 3
    expected = f"status 3: not started again, because 2 starts completed no checkpoint. Cause of the first: {cause}"
    assert expected in caplog.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_both(folder: RunFolder, number: signal.Signals) -> None:
    supervisor = [sys.executable, "-c", SUPERVISOR, str(folder.directory)]
    with subprocess.Popen([*supervisor, *trainer(folder, ["sleep 10", "0 20"])]) as process:
        wait_until((folder.directory / "asleep").exists, "a sleeping trainer", 120, process=process)
        process.send_signal(number)
        assert process.wait(30) == 75
    assert len(starts(folder)) == 1


@pytest.mark.parametrize(
    ("number", "event", "step", "reported", "status"),
    [
        (signal.SIGTERM, "stopped", 7, 1, 75),
        (signal.SIGTERM, "finished", 9, 143, 0),
        (signal.SIGTERM, "failed", 7, 1, 1),
        (signal.SIGTERM, "save failed", 7, 74, 74),
        (signal.SIGINT, "stopped", 7, 130, 0),
        (signal.SIGINT, "stopped", 0, 1, 130),
    ],
)
def test_recorded_events_decide_the_status_of_a_stop(
    folder: RunFolder, number: signal.Signals, event: str, step: int, reported: int, status: int
) -> None:
    """Launchers end with statuses of their own if the whole process group gets a signal."""
    folder.events.write_text(json.dumps({"event": "stopped", "step": 3}) + "\n")  # recorded by an earlier start
    launcher = [sys.executable, "-SE", "-c", STOPPED_LAUNCHER, str(folder.directory), event, str(step), str(reported)]
    supervisor = [sys.executable, "-c", SUPERVISOR, str(folder.directory)]
    with subprocess.Popen([*supervisor, *launcher], start_new_session=True) as process:
        wait_until((folder.directory / "asleep").exists, "a sleeping trainer", 120, process=process)
        os.killpg(process.pid, number)
        assert process.wait(30) == status


def test_a_signal_ends_the_pause(folder: RunFolder) -> None:
    supervisor = [sys.executable, "-c", SUPERVISOR, str(folder.directory)]
    words = trainer(folder, ["74 0", "0 20"])
    with subprocess.Popen([*supervisor, *words], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        assert "status 74: started again in 60 s" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 74
    assert len(starts(folder)) == 1


def test_signal_ends_ranks_of_a_killed_launcher(folder: RunFolder) -> None:
    """The ranks of `deepspeed` write their checkpoint after the launcher has ended.

    The supervisor waits for them, although nobody reads the output of a closed terminal, and returns their status.
    """
    supervisor = [sys.executable, "-c", SUPERVISOR, str(folder.directory)]
    words = launched(trainer(folder, ["orphan 10", "0 20", "0 30"]), folder)
    with subprocess.Popen([*supervisor, *words], stderr=subprocess.PIPE) as process:
        wait_until((folder.directory / "asleep").exists, "a sleeping trainer", 120, process=process)
        assert process.stderr
        process.stderr.close()
        process.send_signal(signal.SIGHUP)
        assert process.wait(30) == 75
    assert len(starts(folder)) == 1
    assert folder.checkpoint(10).exists()


def test_killed_launcher(folder: RunFolder) -> None:
    """The next start waits until the ranks of the killed launcher have ended: they still hold the run directory's lease."""
    assert supervise(command_of(launched(trainer(folder, ["orphan 10", "0 20"]), folder)), folder, 3) == 0
    assert len(starts(folder)) == 2


def test_run_ends_with_killed_supervisor(folder: RunFolder) -> None:
    supervisor = [sys.executable, "-c", SUPERVISOR, str(folder.directory)]
    with subprocess.Popen([*supervisor, *trainer(folder, ["sleep 10", "0 20"])]) as process:
        wait_until((folder.directory / "asleep").exists, "a sleeping trainer", 120, process=process)
        (child,) = psutil.Process(process.pid).children()
        process.kill()
    try:
        child.wait(30)
    except psutil.TimeoutExpired:
        child.kill()
        raise
    assert folder.checkpoint(10).exists()
    assert len(starts(folder)) == 1


def test_command(raw_config: dict[str, Any], folder: RunFolder, tmp_path: Path, command: Command) -> None:
    """`megatape supervise` adds the configuration and --resume auto to the command."""
    raw_config["run"]["directory"] = str(folder.directory)
    (tmp_path / "config.json").write_text(json.dumps(raw_config))
    config = ["--config", str(tmp_path / "config.json"), "--set", "training.steps=5"]
    status, _, errors = command("supervise", *config, "--restarts", 2, "--", *trainer(folder, ["1 10", "0 20"]))
    assert status == 0, errors
    assert starts(folder) == [" ".join([*config, "--resume", "auto"])] * 2


@pytest.mark.parametrize(("more", "is_quiet"), [([], True), (["--verbose"], False)])
def test_the_log_of_deepspeeds_launcher_is_hidden(
    more: list[str], is_quiet: bool, raw_config: dict[str, Any], folder: RunFolder, tmp_path: Path, command: Command
) -> None:
    raw_config["run"]["directory"] = str(folder.directory)
    (tmp_path / "config.json").write_text(json.dumps(raw_config))
    launcher = tmp_path / "deepspeed"
    launcher.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    launcher.chmod(0o755)
    words = ["--config", tmp_path / "config.json", "--restarts", 1, "--", launcher, "launch/pretrain.py", *more]
    status, _, errors = command("supervise", *words)
    assert status == 0, errors
    assert (tmp_path / "asked").read_text().startswith("--quiet launch/pretrain.py --config") == is_quiet


def test_the_command_gets_an_absolute_path(
    raw_config: dict[str, Any], folder: RunFolder, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path beginning with - would be an option of the command."""
    raw_config["run"]["directory"] = str(folder.directory)
    (tmp_path / "--help").write_text(json.dumps(raw_config))
    monkeypatch.chdir(tmp_path)
    status, _, errors = command("supervise", "--config=--help", "--restarts", 1, "--", *trainer(folder, ["0 20"]))
    assert status == 0, errors
    assert starts(folder) == [f"--config {tmp_path}/--help --resume auto"]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["rank 1", "deepspeed"])
def test_the_documented_command(raw_config: dict[str, Any], folder: RunFolder, tmp_path: Path, victim: str) -> None:
    """Two ranks under the real launcher are killed after the first checkpoint. They start again, and the run completes."""
    raw_config["run"]["directory"] = str(folder.directory)
    raw_config["training"]["steps"] = 80
    raw_config["checkpoint"] = {"interval": 20, "keep": 2}
    raw_config["evaluation"]["interval"] = 1000
    (tmp_path / "config.json").write_text(json.dumps(raw_config))
    words = ["supervise", "--restarts", "1", "--config", str(tmp_path / "config.json"), "--"]
    launcher = ["deepspeed", "--num_accelerators", "2", "--master_port", str(free_port()), "launch/pretrain.py"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where the deepspeed command is
    variables = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path}
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "megatape", *words, *launcher], cwd=ROOT, env=variables, stdout=log, stderr=log
        ) as process,
    ):
        try:
            wait_until(lambda: len(folder.list_checkpoints()) > 1, "the second checkpoint", 120, process=process)
            (runner,) = psutil.Process(process.pid).children()
            ranks = {found.environ().get("RANK"): found for found in runner.children(recursive=True)}
            (ranks["1"] if victim == "rank 1" else runner).kill()
            status = process.wait(240)
        finally:
            process.kill()  # ends its run, too
    text = (tmp_path / "log").read_text()
    assert status == 0, text
    assert text.count("started again, 0 restarts left") == 1, text
    assert f"supervise: status {247 if victim == 'rank 1' else 137}" in text, text
    assert list(read_metrics(folder.metrics)) == list(range(1, 81))
    assert [
        event["event"] for _, event in read_lines(folder.events) if event["event"] in ("started", "resumed", "finished")
    ] == [
        "started",
        "resumed",
        "finished",
    ]
