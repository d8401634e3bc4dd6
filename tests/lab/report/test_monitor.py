"""Viewing runs in a terminal: the view's content, leaving runs and terminal as they were."""

import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from megatape.lab.report.monitor import Monitor
from megatape.reliability.run_log import event_entry
from megatape.run_folder import RunFolder
from megatape.utils.files.json_lines import append_lines
from tests.helpers.checks.slow import slow_but
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import Workers
from tests.helpers.runs.report_folders import make_run, train_with_own_module
from tests.helpers.runs.small_run import small_config

# Written when the monitor gives back the terminal's former screen
LEAVE = b"\x1b[?1049l"
SHOW_CURSOR = b"\x1b[?25h"


def shown(monitor: Monitor, width: int) -> str:
    console = Console(width=width, height=100, no_color=True)
    with console.capture() as captured:
        console.print(monitor)
    return captured.get()


def test_view_of_one_run(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """The view has every figure that the command promises. Nothing in the folder changes."""
    folder = make_run(tmp_path / "tape", data_directory)
    folder.checkpoint(15).mkdir(parents=True)
    environment = {"environment": {"ranks": 4, "hosts": 2}}
    append_lines(folder.events, [event_entry("slow rank", 3, "rank 7 of an earlier start")])
    append_lines(folder.events, [event_entry("resumed", 10, "from step 10") | environment])
    append_lines(folder.events, [event_entry("slow rank", 12, "rank 3 (host b, process 7) keeps the others waiting")])
    append_lines(folder.events, [event_entry("spike", 14, "loss \x1b[2J 9.0"), event_entry("rollback", 14, "to step 10")])
    folder.metrics.write_text("".join(folder.metrics.read_text().splitlines(keepends=True)[:15]))
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.directory.rglob("*") if path.is_file()}
    status, printed, errors = command("monitor", folder.directory, "--once")
    assert status == 0
    assert not errors
    rows = [line.strip("│ \n").split(maxsplit=1) for line in printed.splitlines()]
    values = {row[0]: row[1] for row in rows if len(row) == 2}
    assert "tape" in printed.splitlines()[0]
    assert values["training"].endswith("left")
    last = json.loads(folder.metrics.read_text().splitlines()[-1])
    assert values["loss"].startswith(f"{last['loss']:.4f}")
    assert values["tokens/s"].startswith("2.56K")
    assert values["memory"].startswith("1.00 GiB")
    assert values["checkpoint"].startswith("step-00000015, ")
    assert values["ranks"] == "4 ranks on 2 hosts"
    assert "rank 3 (host b" in values["slow"]
    assert values["last"].endswith("s ago")
    assert "1 spike, 1 rollback" in printed
    assert "loss  [2J 9.0" in printed
    assert "\x1b" not in printed
    assert before == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before}


def test_view_needs_neither_torch_nor_modules_of_the_user(data_directory: Path, tmp_path: Path) -> None:
    """Importing torch takes seconds. The GPU's utilization comes from the run's records."""
    folder = make_run(tmp_path / "own", data_directory)
    train_with_own_module(folder)
    folder.config.write_text(folder.config.read_text().replace('"precision": "float32"', '"precision": "bfloat16"'))
    environment = {"device": "NVIDIA H100 80GB HBM3", "ranks": 1, "sample_flops": 10**13}
    append_lines(folder.events, [event_entry("resumed", 20, "") | {"environment": environment}])
    code = """
import sys
from megatape.commands.cli.main import main
status = main(["monitor", sys.argv[1], "--once"])
assert "torch" not in sys.modules, "torch"
sys.exit(status)
"""
    done = subprocess.run([sys.executable, "-c", code, str(folder.directory)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = 10**13 * 8 / 0.1 / 989e12
    assert ["MFU", f"{expected:.1%}"] in [line.strip("│ ").split()[:2] for line in done.stdout.splitlines()], done.stdout


@pytest.mark.parametrize(("width", "rows"), [(60, 3), (110, 2), (200, 1)])
def test_runs_are_side_by_side_as_far_as_they_fit(width: int, rows: int, data_directory: Path, tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name, data_directory, steps=2).directory for name in ("a", "b", "c")]
    lines = shown(Monitor(folders), width).splitlines()
    assert sum("╭" in line for line in lines) == rows
    assert max(map(len, lines)) <= width


def test_view_follows_a_run_and_outlasts_missing_files(data_directory: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", data_directory)
    monitor = Monitor([folder.directory])
    append_lines(folder.metrics, [json.loads(folder.metrics.read_text().splitlines()[-1]) | {"loss": 1.25}])
    assert "1.2500" not in shown(monitor, 100)
    monitor.update()
    assert "1.2500" in shown(monitor, 100)
    assert "not up to date" not in shown(monitor, 100)
    config = folder.config.rename(tmp_path / "away")
    append_lines(folder.events, [event_entry("checkpoint", 20, "")])
    monitor.update()
    assert "1.2500" in shown(monitor, 100)
    assert "not up to date" in shown(monitor, 100)
    config.rename(folder.config)
    monitor.update()
    assert "not up to date" not in shown(monitor, 100)
    metrics = folder.metrics.rename(tmp_path / "metrics")
    folder.metrics.symlink_to("x" * 300)  # A file name too long even for `stat`
    monitor.update()
    assert "1.2500" in shown(monitor, 100)
    assert "not up to date" in shown(monitor, 100)
    folder.metrics.unlink()
    metrics.rename(folder.metrics)
    monitor.update()
    assert "1.2500" in shown(monitor, 100)
    assert "not up to date" not in shown(monitor, 100)


def test_files_of_a_host_whose_clock_is_ahead(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """The files' age is unknown, and so is whether the run is still training. The view says so instead of 0 s ago."""
    folder = make_run(tmp_path / "run", data_directory)
    folder.metrics.write_text("".join(folder.metrics.read_text().splitlines(keepends=True)[:15]))
    checkpoint = folder.checkpoint(15)
    checkpoint.mkdir(parents=True)
    week = time.time() + 7 * 86_400 + 60
    for path in (folder.metrics, folder.events, checkpoint):
        os.utime(path, (week, week))
    status, printed, errors = command("monitor", folder.directory, "--once")
    assert status == 0
    assert errors == ""
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", printed).split())
    assert "training perhaps: the last line is 7 d" in text
    assert text.count("ahead of this machine's clock") == 3
    assert " ago" not in text


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "config.json", "latest", "lease.json", "positions"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_in_a_run_are_not_read(
    command: Command, data_directory: Path, tmp_path: Path, name: str, kind: str
) -> None:
    """Each command reading runs ends, even if a run's file is a pipe without a writer or a link to an endless device."""
    folder = make_run(tmp_path / "run", data_directory)
    path = folder.directory / name
    if name == "positions":
        path = next(iter(folder.list_position_views().values()))
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    page = tmp_path / "page.html"
    for words in (("monitor", "--once"), ("report", "--output", page), ("ledger",)):
        status, _, errors = command(*words, folder.directory)
        assert "Traceback" not in errors
        if name in ("metrics.jsonl", "config.json"):
            assert status == 2, errors
            assert errors.count("\n") == 1, errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run"], "the output is not a terminal: add --once"),
        (["gone", "--once"], "no folder"),
        (["x" * 300, "--once"], "File name too long"),
        ([".", "--once"], "holds no run"),
    ],
)
def test_bad_options_are_refused(
    words: list[str], message: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, printed, errors = command("monitor", *words)
    assert status == 2
    assert printed == ""
    assert message in errors


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, data_directory: Path) -> RunFolder:
    """Write a run of two steps."""
    folder = tmp_path_factory.mktemp("trained")
    raw: dict[str, Any] = small_config(data_directory, folder / "run")
    raw["training"] |= {"steps": 2}
    (folder / "config.json").write_text(json.dumps(raw))
    with Workers(["pretrain", "--config", str(folder / "config.json")], 1, folder / "workers") as workers:
        assert workers.statuses() == [0], workers.logs()
    return RunFolder(folder / "run")


@pytest.mark.parametrize("end", slow_but(["\x03"], ["\x03", signal.SIGTERM]))
def test_view_in_a_terminal(end: str | signal.Signals, trained: RunFolder, tmp_path: Path) -> None:
    """The view follows new steps and a new size, ends on Ctrl-C and SIGTERM, and restores the terminal's modes and screen."""
    ours, theirs = os.openpty()
    before = termios.tcgetattr(theirs)

    def resize(columns: int) -> None:
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    resize(100)
    # Drop the size of the terminal running the tests.
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    # With a controlling terminal, Ctrl-C becomes a signal.
    begin = "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
    begin += "; from megatape.commands.cli.main import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", begin, "monitor", str(trained.directory), "--interval", "1"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path,
        env=environment | {"TERM": "xterm", "PYTHONPATH": str(Path(__file__).parents[3])},
        start_new_session=True,
    )
    unread = b""

    def wait_for(text: str, seconds: float = 60) -> None:
        nonlocal unread
        deadline = time.monotonic() + seconds
        while text.encode() not in unread and select.select([ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
            unread += os.read(ours, 4096)
        assert text.encode() in unread, unread.decode()
        unread = unread.partition(text.encode())[2]

    try:
        wait_for("2 steps")
        wait_for("╯")
        append_lines(trained.events, [event_entry("spike", 2, f"seen {process.pid}")])
        wait_for(f"seen {process.pid}")
        resize(60)
        # Bottom edge of a panel 60 characters wide.
        wait_for("╰" + "─" * 58 + "╯")
        if isinstance(end, str):
            os.write(ours, end.encode())
        else:
            process.send_signal(end)
        deadline = time.monotonic() + 30
        # Read until the process ends: it may be drawing a view.
        while process.poll() is None and time.monotonic() < deadline:
            unread += os.read(ours, 4096) if select.select([ours], [], [], 0.1)[0] else b""
        while select.select([ours], [], [], 0)[0]:
            unread += os.read(ours, 4096)
        assert process.poll() == 0
        assert LEAVE in unread
        assert SHOW_CURSOR in unread
        assert b"Traceback" not in unread
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        os.close(ours)
        os.close(theirs)
