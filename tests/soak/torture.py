"""A torture: hundreds of faults in runs under a supervisor, each compared with an undisturbed run.

Runs are pieces of the torture. After an interruption, it continues with the piece in progress, in the same folder.
"""

import json
import random
import shutil
import signal
import statistics
import traceback
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatape.reliability.goodput.process_clock import ClockReading
from megatape.reliability.goodput.read import read_run_time
from megatape.run_folder import RunFolder
from megatape.utils.files.json_lines import read_lines
from megatape.utils.text.tables import markdown
from tests.helpers.runs.small_run import prepare_words, small_config
from tests.soak.disk import small_disk
from tests.soak.journal import Journal
from tests.soak.launch import Failure, ForkedStart
from tests.soak.tortured_run import KINDS, NUM_RANKS, TorturedRun
from tests.soak.verdict import compare

STEPS = 240
SAVE_INTERVAL = 10
EVALUATION_INTERVAL = 60
# Share by which a run's parts may miss its wall time
TIME_TOLERANCE = 0.01


@dataclass(frozen=True)
class Piece:
    """A run of the torture.

    Attributes:
        number: Number, from 1.
        stage: ZeRO stage.
        tensor_ranks: Number of tensor-parallel ranks, out of two ranks.
        background: Whether to save in the background.
    """

    number: int
    stage: int
    tensor_ranks: int
    background: bool

    @classmethod
    def of_number(cls, number: int) -> "Piece":
        """Return a piece. Eight in a row cover all stages and numbers of tensor-parallel ranks."""
        index = number - 1
        stage = index % 4
        tensor_ranks = 1 + (index + index // 4) % 2
        return cls(number, stage, tensor_ranks, background=index // 2 % 2 == 1)

    def config(self, data: Path, folder: Path, steps: int) -> dict[str, Any]:
        """Return the run's configuration."""
        config = small_config(data, folder)
        config["training"] |= {"steps": steps, "micro_batch_size": 2}
        config["zero"] = {"stage": self.stage}
        config["parallel"] = {"tp": self.tensor_ranks}
        config["checkpoint"] = {"interval": SAVE_INTERVAL, "keep": 3, "background": self.background}
        config["evaluation"]["interval"] = EVALUATION_INTERVAL
        config["logging"] = {"sinks": ["jsonl"], "callbacks": ["faults"]}
        return config


def torture(num_faults: int, mean_seconds: float, seed: int, output: Path, steps: int = STEPS) -> None:
    """Disturb runs until there have been enough faults, and finish the last one. Continues an earlier torture.

    Args:
        num_faults: Number of faults, over all pieces and earlier calls.
        mean_seconds: Mean seconds from the recovery after a fault to the next one.
        seed: Seed for drawing faults.
        output: Folder for journal, logs and undisturbed runs, keeping those from earlier calls.
        steps: Steps in each run.

    Raises:
        Failure: A run ends with an unexpected status, hangs, or differs from the undisturbed one.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    output.mkdir(parents=True, exist_ok=True)
    if not (output / "words" / "data").exists():
        (output / "words").mkdir(exist_ok=True)
        prepare_words(output / "words")
    data = output / "words" / "data"
    journal = Journal(output / "torture.jsonl")
    with small_disk(output / "disk") as disk:
        while True:
            finished = _finished_pieces(output)
            left = num_faults - sum(entry["faults"] for entry in finished)
            if left <= 0:
                return
            piece = Piece.of_number(len(finished) + 1)
            folder = RunFolder(output / "disk" / f"run-{piece.number}")
            logs = output / f"piece-{piece.number}"
            for path in (folder.directory, logs):
                shutil.rmtree(path, ignore_errors=True)
            logs.mkdir()
            journal.write(event="piece", **vars(piece))
            try:
                undisturbed = _undisturbed(piece, data, output, steps)
                config = logs / "config.json"
                config.write_text(json.dumps(piece.config(data, folder.directory, steps)))
                draw = random.Random(f"{seed} {piece.number}")
                run = TorturedRun(config, folder, logs, disk, journal, draw)
                number_of_faults = run.torture(mean_seconds, _kinds(draw), left)
                goodput = _check(folder, undisturbed)
            except BaseException as error:
                text = "".join(traceback.format_exception_only(error)).splitlines()[0]
                journal.write(event="failure", piece=piece.number, kind=type(error).__name__, text=text)
                if folder.directory.exists():
                    shutil.copytree(folder.directory, logs / "run", symlinks=True, dirs_exist_ok=True)
                raise
            journal.write(event="equal", piece=piece.number, faults=number_of_faults, goodput=round(goodput, 4))
            shutil.rmtree(folder.directory)


def _finished_pieces(output: Path) -> list[dict[str, Any]]:
    """Return the journal's entries about runs that were equal to undisturbed ones."""
    return [entry for _, entry in read_lines(output / "torture.jsonl") if entry["event"] == "equal"]


def _kinds(draw: random.Random) -> Iterator[str]:
    """Yield all kinds of faults in random order, again and again."""
    while True:
        yield from draw.sample(sorted(KINDS), len(KINDS))


def _undisturbed(piece: Piece, data: Path, output: Path, steps: int) -> RunFolder:
    """Return the undisturbed run for a piece, shared by pieces with the same ranks and stage."""
    folder = RunFolder(output / f"undisturbed-{piece.stage}-{piece.tensor_ranks}")
    if folder.directory.exists() and not list(folder.checkpoints.glob(f"*{steps}")):
        # The torture was interrupted before the run ended.
        shutil.rmtree(folder.directory)
    if not folder.directory.exists():
        config = folder.directory.with_suffix(".json")
        raw = piece.config(data, folder.directory, steps)
        raw["logging"].pop("callbacks")
        config.write_text(json.dumps(raw))
        start = ForkedStart(["--config", str(config)], NUM_RANKS, folder.directory.with_suffix(".logs"))
        start.wait_for_end()
        if any(start.statuses()):
            raise Failure(f"the undisturbed run ended with {start.statuses()}\n{start.logs()}")
    return folder


def _check(run: RunFolder, undisturbed: RunFolder) -> float:
    """Compare a run with the undisturbed one, and its parts with the wall time. Returns its goodput."""
    # A full disk may have cost position views.
    compare(run, undisturbed, fixed=True, all_views=False)
    readings = []
    for _, event in read_lines(run.events):
        reading = ClockReading.from_json(event.get("clock"))
        assert reading is not None, event
        readings.append(reading)
    wall_seconds = readings[-1].now - readings[0].began
    parts = read_run_time(run).parts
    if abs(parts.total - wall_seconds) > TIME_TOLERANCE * wall_seconds:
        raise Failure(f"the parts of the run's time are {parts.total:.1f} s, its wall time is {wall_seconds:.1f} s: {parts}")
    assert parts.goodput is not None
    return parts.goodput


def table(journal: Path) -> str:
    """Return a Markdown table counting a torture's faults in finished runs, with a row for each kind."""
    seconds: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for entry in faults_of_finished_runs(journal):
        counts[entry["kind"]] += 1
        if "recovery" in entry:
            seconds[entry["kind"]].append(entry["recovery"])
    rows = []
    for kind in KINDS:
        measured = seconds[kind]
        times = ["", ""]
        if measured:
            times = [f"{statistics.median(measured):.1f}", f"{max(measured):.1f}"]
        rows.append([kind, str(counts[kind]), *times])
    rows.append(["all", str(sum(counts.values())), "", ""])
    return markdown(["fault", "number", "seconds to the next new step, median", "largest"], rows)


def faults_of_finished_runs(journal: Path) -> list[dict[str, Any]]:
    """Return the journal's entries about faults in runs that were equal to undisturbed ones."""
    faults: list[dict[str, Any]] = []
    unfinished: list[dict[str, Any]] = []
    for _, entry in read_lines(journal):
        if entry["event"] == "piece":
            unfinished = []
        elif entry["event"] == "fault":
            unfinished.append(entry)
        elif entry["event"] == "equal":
            faults += unfinished
    return faults
