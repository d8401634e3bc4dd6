"""Ranks that `megatape supervise` starts itself."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from megatape.errors import ExitStatus
from megatape.imports import import_given
from megatape.run_folder import RunFolder
from megatape.tools.cluster.supervise.ended_command import EndedCommand
from megatape.tools.cluster.supervise.local_launcher import LocalLauncher
from megatape.tools.cluster.supervise.local_ranks import LocalRanks
from megatape.tools.cluster.supervise.rank_process import RankProcess
from tests.helpers.processes.command import Command, assert_refused
from tests.helpers.processes.waiting import wait_until

# A rank that writes its environment, and ends as the folder's file `end` says: by rank, an exit status or "sleep".
RANK = """
import json, os, pathlib, signal, sys, time
os.environ.update(json.loads(open(int(os.environ["MEGATAPE_RANK_PIPE"])).read() or "{}").get("variables", {}))
if "RANK" not in os.environ:
    sys.exit()
folder = pathlib.Path(sys.argv[1])
rank = os.environ["RANK"]
signal.signal(signal.SIGTERM, lambda *_: (folder / f"signaled{rank}").touch() or sys.exit(75))
(folder / f"rank{rank}.tmp").write_text(json.dumps(dict(os.environ) | {"pid": os.getpid()}))
(folder / f"rank{rank}.tmp").rename(folder / f"rank{rank}.json")
end = json.loads((folder / "end").read_text())[int(rank)]
if end == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if end in ("sleep", "deaf"):
    time.sleep(100)
if end == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(end)
"""
# Program starting a launcher. Tests kill it to end the launcher.
LAUNCHER = """
import pathlib, sys
from megatape.run_folder import RunFolder
from megatape.tools.cluster.supervise.local_launcher import LocalLauncher
folder = pathlib.Path(sys.argv[1])
LocalLauncher(sys.argv[2:], 2, folder / "config.json", False, RunFolder(folder)).start().wait()
"""


def command_of(folder: Path, ends: list[object]) -> list[str]:
    (folder / "end").write_text(json.dumps(ends))
    return [sys.executable, "-SE", "-c", RANK, str(folder)]


def start_ranks(folder: Path, ends: list[object]) -> list[RankProcess]:
    """Start ranks by LocalLauncher's means, without its waiting times."""
    command = command_of(folder, ends)
    processes = []
    for rank in range(len(ends)):
        process = RankProcess(command)
        process.become({"RANK": str(rank)})
        processes.append(process)
    return processes


def launcher_of(folder: Path, ends: list[object], has_standby: bool = False) -> LocalLauncher:
    (folder / "config.json").write_text("{}")
    return LocalLauncher(command_of(folder, ends), len(ends), folder / "config.json", has_standby, RunFolder(folder))


def environments(folder: Path, num_ranks: int) -> list[dict[str, str]]:
    """Wait until all ranks have started, and return their environments."""
    paths = [folder / f"rank{rank}.json" for rank in range(num_ranks)]
    wait_until(lambda: all(path.exists() for path in paths), "all ranks", 60)
    return [json.loads(path.read_text()) for path in paths]


def test_the_environment_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks meet on this machine, even if srun has started the supervisor."""
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert launcher_of(tmp_path, [0, 0, 0]).start().wait().status == 0
    for rank, environment in enumerate(environments(tmp_path, 3)):
        assert (environment["RANK"], environment["LOCAL_RANK"]) == (str(rank), str(rank))
        assert (environment["WORLD_SIZE"], environment["LOCAL_WORLD_SIZE"]) == ("3", "3")
        assert environment["MASTER_ADDR"] == "127.0.0.1"
        assert environment["MASTER_PORT"].isdecimal()
        assert "SLURM_STEP_NUM_TASKS" not in environment
    assert len({environment["MASTER_PORT"] for environment in environments(tmp_path, 3)}) == 1


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ([0, 0], 0),
        ([75, 75], ExitStatus.UNFINISHED),
        ([75, 0], ExitStatus.UNFINISHED),
        (["sleep", 3], ExitStatus.DIVERGED),
        (["sleep", "killed"], 128 + signal.SIGKILL),
        (["killed", "sleep"], 128 + signal.SIGKILL),
    ],
)
def test_the_exit_status_is_that_of_the_first_failure(tmp_path: Path, ends: list[object], status: int) -> None:
    """The other ranks get SIGTERM after an error, and SIGKILL if a rank was killed: they might wait for it for long."""
    assert LocalRanks(start_ranks(tmp_path, ends), lead=0.1).wait().status == status
    assert (tmp_path / "signaled0").exists() == (ends == ["sleep", 3])


def test_a_rank_that_ignores_signals_is_killed(tmp_path: Path) -> None:
    started = time.monotonic()
    ended = LocalRanks(start_ranks(tmp_path, ["deaf", 2]), lead=0.1, grace=0.1).wait()
    assert ended.status == ExitStatus.USER_ERROR
    assert re.fullmatch(r"rank 1 \(process [0-9]+\) ended with status 2", ended.cause)
    assert time.monotonic() - started < 60


def test_ranks_end_with_their_launcher(tmp_path: Path) -> None:
    words = command_of(tmp_path, ["sleep", "sleep"])
    with subprocess.Popen([sys.executable, "-c", LAUNCHER, str(tmp_path), *words]) as launcher:
        pids = [int(environment["pid"]) for environment in environments(tmp_path, 2)]
        launcher.kill()
    wait_until(lambda: not any(is_running(pid) for pid in pids), "the end of the ranks", 60)
    assert (tmp_path / "signaled0").exists()
    assert (tmp_path / "signaled1").exists()


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_signal_is_passed_on(tmp_path: Path) -> None:
    ranks = LocalRanks(start_ranks(tmp_path, ["sleep", "sleep"]))
    environments(tmp_path, 2)
    ranks.send(signal.SIGTERM)
    assert ranks.wait().status == ExitStatus.UNFINISHED


def waiting_processes() -> list[int]:
    """Return the children of this process that wait for a rank."""
    pids = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE and "MEGATAPE_RANK_PIPE" in child.environ():
                pids.append(child.pid)
    return pids


def with_standby(folder: Path) -> tuple[LocalLauncher, list[int]]:
    """Run two ranks until their standby processes have started, and end them. Returns the launcher and these processes."""
    launcher = launcher_of(folder, ["sleep", "sleep"], has_standby=True)
    ranks = launcher.start()
    first = {int(environment["pid"]) for environment in environments(folder, 2)}
    result: list[EndedCommand] = []

    def end_after_a_step() -> None:
        RunFolder(folder).metrics.write_text('{"step": 1}\n')
        wait_until(lambda: len(set(waiting_processes()) - first) == 2, "standby processes", 60)
        ranks.send(signal.SIGTERM)

    ender = threading.Thread(target=end_after_a_step)
    ender.start()
    result.append(ranks.wait())
    ender.join()
    assert result[0].status == ExitStatus.UNFINISHED
    for file in folder.glob("rank*.json"):
        file.unlink()
    return launcher, sorted(set(waiting_processes()) - first)


def test_standby_processes_become_the_next_ranks(tmp_path: Path) -> None:
    launcher, standby = with_standby(tmp_path)
    with launcher:
        command_of(tmp_path, [0, 0])
        assert launcher.start().wait().status == 0
        assert sorted(int(environment["pid"]) for environment in environments(tmp_path, 2)) == standby


def test_a_standby_process_that_has_ended_is_replaced(tmp_path: Path) -> None:
    launcher, standby = with_standby(tmp_path)
    with launcher:
        os.kill(standby[0], signal.SIGKILL)
        wait_until(lambda: not is_running(standby[0]), "the end of a standby process", 60)
        command_of(tmp_path, [0, 0])
        assert launcher.start().wait().status == 0
        pids = {int(environment["pid"]) for environment in environments(tmp_path, 2)}
        assert pids & set(standby) == {standby[1]}


def test_standby_processes_of_another_configuration_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    launcher, standby = with_standby(tmp_path)
    (tmp_path / "config.json").write_text('{"changed": true}')
    with launcher, caplog.at_level("WARNING", "megatape"):
        command_of(tmp_path, [0, 0])
        assert launcher.start().wait().status == 0
        pids = {int(environment["pid"]) for environment in environments(tmp_path, 2)}
    assert not pids & set(standby)
    assert not any(is_running(pid) for pid in standby)
    assert f"the configuration {tmp_path / 'config.json'} changed: the standby processes are replaced" in caplog.text


def test_standby_processes_of_other_code_are_refused(
    tmp_path: Path, own_modules: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code is the package, and modules of the user's own."""
    module = tmp_path / "own_part_of_a_run.py"
    module.write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import_given("own_part_of_a_run")
    launcher, standby = with_standby(tmp_path)
    module.write_text("VALUE = 2\n")
    with launcher:
        command_of(tmp_path, [0, 0])
        assert launcher.start().wait().status == 0
        pids = {int(environment["pid"]) for environment in environments(tmp_path, 2)}
    assert not pids & set(standby)


def test_standby_processes_end_with_their_launcher(tmp_path: Path) -> None:
    launcher, standby = with_standby(tmp_path)
    with launcher:
        assert all(is_running(pid) for pid in standby)
    assert not any(is_running(pid) for pid in standby)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing starts the ranks: give --ranks"),
        (("--ranks", "2", "--", "deepspeed", "launch/pretrain.py"), "--ranks starts ranks without a launcher"),
        (("--ranks", "0"), "--ranks"),
        (("--standby", "--", "deepspeed", "launch/pretrain.py"), "--standby needs --ranks: other launchers"),
    ],
)
def test_wrong_options(command: Command, raw_config: object, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(raw_config))
    result = command("supervise", "--restarts", "1", "--config", config, *words)
    assert_refused((result[0], result[1], result[2].replace("`", "")), message.replace("`", ""))
