"""python -m tests.soak.restarts --stages 0,3 --kills 2: seconds from `kill -9` of a rank to the next new step, by phase.

Each case trains a small model on two ranks with a launcher, a ZeRO stage and a number of tensor-parallel ranks. A rank is
killed some steps after a checkpoint, and whatever restarts the run is part of the measured time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Self

import psutil

from megatape.reliability.goodput.parts import RESTART_PARTS, TimePart
from megatape.reliability.goodput.process_clock import ClockReading
from megatape.run_folder import RunFolder, read_metrics
from megatape.utils.files.json_lines import read_lines
from megatape.utils.processes.process_table import seconds_since_boot
from megatape.utils.text.tables import markdown
from tests.helpers.processes.local_ranks import running_ranks, standby_processes
from tests.helpers.processes.waiting import wait_until
from tests.helpers.processes.workers import ROOT, free_port
from tests.helpers.runs.small_run import prepare_words, small_config

INTERVAL = 10
# Steps between a checkpoint and the kill, which have to be made again.
STEPS_AFTER_CHECKPOINT = 4
STEPS = 1_000_000
# Seconds of waiting on an idle machine (tests/helpers/processes/load.py).
TIMEOUT = 120.0
DETECTION = "until the main rank noticed it"
REPLACEMENT = "until the next launcher started"
FIRST_STEP = "until the first new step"
PHASES = (DETECTION, REPLACEMENT, *(part.value for part in RESTART_PARTS if part is not TimePart.DOWN), FIRST_STEP, "other")
# Columns of the table -> their phases.
COLUMNS = {
    "noticed": (DETECTION,),
    "old ranks end": (REPLACEMENT,),
    "launcher": ("launch",),
    "Python, imports": ("process_start", "imports"),
    "ranks meet": ("rendezvous",),
    "data, model": ("setup", "compilation"),
    "checkpoint": ("verification", "weights"),
    "steps made again": (FIRST_STEP, "other"),
}


@dataclass(frozen=True)
class Launch:
    """Command that starts a run, and starts it again.

    Attributes:
        words: Command that starts the ranks, empty for `megatape supervise --ranks`.
        is_supervised: Whether `megatape supervise` runs the command. Otherwise this script starts it again at once.
        has_standby: Whether standby processes take the ranks' places.
    """

    words: tuple[str, ...]
    is_supervised: bool
    has_standby: bool = False

    def command(self, config: Path) -> list[str]:
        """Return the command line for a run."""
        settings = ["--config", str(config)]
        supervise = [sys.executable, str(ROOT / "megatape" / "__main__.py"), "supervise", "--restarts", "1000", *settings]
        if not self.words:
            words = [*supervise, "--ranks", "2"]
            if self.has_standby:
                words.append("--standby")
            return words
        program = str(Path(sys.executable).parent / self.words[0])
        port = str(free_port())
        launcher = [program, *(word.format(port=port) for word in self.words[1:]), str(ROOT / "launch" / "pretrain.py")]
        if self.is_supervised:
            return [*supervise, "--", *launcher]
        return [*launcher, *settings, "--resume", "auto"]


DEEPSPEED = ("deepspeed", "--num_accelerators", "2", "--master_port", "{port}")
TORCHRUN = ("torchrun", "--nproc-per-node", "2", "--master-port", "{port}")
LAUNCHERS = {
    "deepspeed": Launch(DEEPSPEED, is_supervised=False),
    "supervise, deepspeed": Launch(DEEPSPEED, is_supervised=True),
    "supervise, torchrun": Launch(TORCHRUN, is_supervised=True),
    "supervise --ranks": Launch((), is_supervised=True),
    "supervise --ranks --standby": Launch((), is_supervised=True, has_standby=True),
}


class MeasuredRun:
    """A run whose ranks are killed. As a context manager, kills all its processes at the end.

    Args:
        launch: How it is started.
        stage: ZeRO stage.
        tensor_ranks: Number of tensor-parallel ranks, 1 or 2.
        data: Data directory.
        folder: New folder for its configuration, log and run directory.
    """

    def __init__(self, launch: Launch, stage: int, tensor_ranks: int, data: Path, folder: Path) -> None:
        folder.mkdir()
        self._launch = launch
        self._folder = RunFolder(folder / "run")
        self._log = folder / "log"
        raw = small_config(data, self._folder.directory)
        raw["training"]["steps"] = STEPS
        raw["checkpoint"] = {"interval": INTERVAL}
        raw["zero"] = {"stage": stage}
        raw["parallel"] = {"tp": tensor_ranks}
        self._config = folder / "config.json"
        self._config.write_text(json.dumps(raw))
        self._last_step_before = 0
        self._process = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        tree = [self._process, *psutil.Process(self._process.pid).children(recursive=True)]
        for process in tree:
            with suppress(psutil.Error, ProcessLookupError):
                process.kill()
        self._process.wait()

    def measure(self) -> dict[str, float]:
        """Kill the last rank. Return the seconds for each phase until the next new step."""
        if self._launch.has_standby:
            wait_until(self._has_standby, "standby processes", TIMEOUT, details=self._log.read_text)
        first = self._last_step()
        wait_until(lambda: self._is_due(first), "steps after a checkpoint", TIMEOUT, details=self._log.read_text)
        num_events = len(self._events())
        victim = self._ranks()[-1]
        killed_at = seconds_since_boot()
        victim.kill()
        wait_until(lambda: self._has_resumed(num_events), "a resumed run", TIMEOUT, details=self._log.read_text)
        wait_until(self._makes_new_steps, "a new step", TIMEOUT, interval=0.01, details=self._log.read_text)
        ended_at = seconds_since_boot()
        return self._phases(self._events()[num_events:], killed_at, ended_at)

    def _has_resumed(self, num_events: int) -> bool:
        """Whether the run has resumed after an event. Notes the last step before that."""
        self._last_step_before = max(self._last_step_before, self._last_step())
        return any(event["event"] == "resumed" for event in self._events()[num_events:])

    def _makes_new_steps(self) -> bool:
        return self._last_step() > self._last_step_before

    def _phases(self, events: list[dict[str, Any]], killed_at: float, ended_at: float) -> dict[str, float]:
        reading = ClockReading.from_json(next(event["clock"] for event in events if event["event"] == "resumed"))
        assert reading is not None
        noticed_at = killed_at
        for event in events:
            if event["event"] in ("failed", "stopped"):
                noticed_at = max(noticed_at, event["clock"]["now"])
        phases = {DETECTION: noticed_at - killed_at, REPLACEMENT: reading.began - noticed_at}
        launch_overlap = max(0.0, -phases[REPLACEMENT])
        for part in RESTART_PARTS:
            if part.value in PHASES:
                phases[part.value] = reading.parts[part]
        phases["launch"] = max(0.0, phases["launch"] - launch_overlap)
        phases[REPLACEMENT] = max(0.0, phases[REPLACEMENT])
        phases[FIRST_STEP] = ended_at - reading.now
        phases["other"] = ended_at - killed_at - sum(phases.values())
        return phases

    def _start(self) -> "subprocess.Popen[bytes]":
        command = self._launch.command(self._config)
        with self._log.open("a") as log:
            return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)

    def _is_due(self, first: int) -> bool:
        step = self._last_step()
        return step >= first + INTERVAL and step % INTERVAL >= STEPS_AFTER_CHECKPOINT

    def _last_step(self) -> int:
        """Return the last recorded step. Starts the run again if its command has ended."""
        if self._process.poll() is not None:
            assert not self._launch.is_supervised, self._log.read_text()
            self._process = self._start()
        return max(read_metrics(self._folder.metrics), default=0)

    def _events(self) -> list[dict[str, Any]]:
        return [entry for _, entry in read_lines(self._folder.events)]

    def _has_standby(self) -> bool:
        self._last_step()
        return len(standby_processes(self._process.pid)) == 2

    def _ranks(self) -> list[psutil.Process]:
        """Return the ranks in order."""
        if not self._launch.words:
            return running_ranks(self._process.pid)
        ranks: dict[int, psutil.Process] = {}
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.Error, KeyError):
                ranks[int(process.environ()["RANK"])] = process
        return [ranks[rank] for rank in sorted(ranks)]


@dataclass(frozen=True)
class Case:
    """A measured way to train.

    Attributes:
        launcher: Name in LAUNCHERS.
        stage: ZeRO stage.
        tensor_ranks: Number of tensor-parallel ranks.
    """

    launcher: str
    stage: int
    tensor_ranks: int


def measure(case: Case, num_kills: int, data: Path, folder: Path) -> dict[str, float]:
    """Return the median seconds for each phase over several kills.

    Args:
        case: Way to train.
        num_kills: Number of kills.
        data: Data directory.
        folder: New folder.
    """
    with MeasuredRun(LAUNCHERS[case.launcher], case.stage, case.tensor_ranks, data, folder) as run:
        measured = [run.measure() for _ in range(num_kills)]
    return {name: statistics.median(phases[name] for phases in measured) for name in PHASES}


def table(cases: dict[Case, dict[str, float]]) -> str:
    """Return a Markdown table with a row for each case, and a column for each group of phases."""
    rows = []
    for case, phases in cases.items():
        columns = [sum(phases[name] for name in names) for names in COLUMNS.values()]
        seconds = [f"{column:.1f}" for column in [*columns, sum(phases.values())]]
        rows.append([f"`{case.launcher}`", str(case.stage), str(case.tensor_ranks), *seconds])
    return markdown(["started by", "stage", "T", *COLUMNS, "all"], rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.restarts", description=__doc__)
    parser.add_argument("--stages", default="0,1,2,3", help="ZeRO stages")
    parser.add_argument("--tensor-ranks", default="1,2", help="numbers of tensor-parallel ranks")
    parser.add_argument("--launchers", nargs="+", choices=LAUNCHERS, default=list(LAUNCHERS), help="how the run is started")
    parser.add_argument("--kills", type=int, default=3, help="kills of each case, whose medians are shown")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="restarts-"))
    data = prepare_words(folder)
    cases = {}
    stages = map(int, args.stages.split(","))
    tensor_ranks = map(int, args.tensor_ranks.split(","))
    for number, (launcher, stage, size) in enumerate(product(args.launchers, stages, tensor_ranks)):
        case = Case(launcher, stage, size)
        load = os.getloadavg()[0]
        cases[case] = measure(case, args.kills, data, folder / str(number))
        print(f"{case}: {sum(cases[case].values()):.1f} s, load {load:.1f} to {os.getloadavg()[0]:.1f}", flush=True)
    print(table(cases))


if __name__ == "__main__":
    main()
