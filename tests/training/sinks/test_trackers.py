"""Sinks writing to trackers: with the real packages offline (make trackers), and faults, which never end a run."""

import json
import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from megatape.config import parse_config
from megatape.registry import SINKS, SinkEntry
from megatape.run_folder import RunFolder
from megatape.training.callbacks.callback import RunContext
from megatape.training.callbacks.metrics import Metrics
from megatape.training.reporting.step_metrics import StepMetrics
from megatape.training.sinks.sink import Sink
from megatape.training.sinks.trackers import Tracker
from megatape.training.startup.rank_agreement import check_packages
from tests.helpers.processes.workers import Workers
from tests.helpers.runs.run_context import make_callbacks, make_context

# Sizes of a file's header, of each part's header, and of a block
HEADER_BYTES = 7
BLOCK_BYTES = 2**15

# Kinds of parts completing a record: a whole record, and its last part
COMPLETE = (1, 4)


def wandb_records(file: Path) -> Iterator[Any]:
    """Yield the records in an offline run.

    The file has a header, then blocks with parts of records, as in LevelDB's log.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data = file.read_bytes()
    offset = HEADER_BYTES
    record = b""
    while offset + HEADER_BYTES <= len(data):
        rest_of_block = BLOCK_BYTES - offset % BLOCK_BYTES
        if rest_of_block < HEADER_BYTES:
            # The rest of the block is padding.
            offset += rest_of_block
            continue
        begin = offset + HEADER_BYTES
        _, length, kind = struct.unpack("<IHB", data[offset:begin])
        record += data[begin : begin + length]
        offset = begin + length
        if kind in COMPLETE:
            yield Record.FromString(record)
            record = b""


@pytest.mark.slow
@pytest.mark.trackers
def test_real_packages_offline(raw_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Continuing a run of 4 steps from step 2 to 6 makes one record of 6 steps with losses and configuration."""
    environment = {
        "WANDB_MODE": "offline",
        "WANDB_PROJECT": "tests",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "TRACKIO_PROJECT": "tests",
        "HF_HUB_OFFLINE": "1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    raw_config["logging"]["sinks"] = ["jsonl", "wandb", "trackio"]
    raw_config["checkpoint"] = {"interval": 2, "keep": 5}
    raw_config["schedule"] = {"kind": "constant"}
    path = tmp_path / "config.json"
    run = tmp_path / "run"
    path.write_text(json.dumps(raw_config))
    for number, steps in enumerate([4, 6]):
        words = ["pretrain", "--config", str(path), "--resume", "auto", "--set", f"training.steps={steps}"]
        with Workers(words, 2, tmp_path / f"start{number}") as workers:
            assert workers.statuses(180) == [0, 0], workers.logs()
            assert "warning: sink" not in workers.logs(), workers.logs()
        # Without its checkpoint, steps 3 and 4 are made again.
        shutil.rmtree(run / "checkpoints" / "step-00000004")
    losses = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        losses[entry["step"]] = entry["loss"]
    assert list(losses) == [1, 2, 3, 4, 5, 6]
    check_wandb(run, losses)
    check_trackio(losses)


def check_wandb(run: Path, losses: dict[int, float]) -> None:
    """Check the files after starting a run twice: one record, with the losses by step."""
    files = sorted((run / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    records = [record for file in files for record in wandb_records(file)]
    starts = [record.run for record in records if record.HasField("run")]
    assert len({start.run_id for start in starts}) == 1
    assert starts[0].project == "tests"
    config = {item.key: json.loads(item.value_json) for item in starts[0].config.update}
    assert config["training"]["global_batch_size"] == 8
    assert config["run"]["directory"] == str(run)
    rows = []
    for record in records:
        if record.HasField("history"):
            rows.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item})
    assert len(rows) == len(losses)
    assert {row["_step"]: row["loss/train"] for row in rows} == pytest.approx(losses)
    assert sum(record.HasField("exit") for record in records) == 2


def check_trackio(losses: dict[int, float]) -> None:
    """Check the database: one record, with the losses by step."""
    from trackio.sqlite_storage import SQLiteStorage

    (name,) = SQLiteStorage.get_runs("tests")
    rows = SQLiteStorage.get_logs("tests", name)
    assert len(rows) == len(losses)
    assert {row["step"]: row["loss/train"] for row in rows} == pytest.approx(losses)
    assert SQLiteStorage.get_run_config("tests", name)["training"]["global_batch_size"] == 8


def make_metrics(step: int) -> StepMetrics:
    return StepMetrics(step, 1.0 / step, 1.0, 0.1, 32 * step, step, 0.1, 1000, None)


class Kept(Tracker):
    """Tracker in memory.

    Attributes:
        records: Steps in each record, by id.
        finished: Number of finished records.
    """

    name = "kept"
    records: ClassVar[dict[str, list[int]]] = {}
    finished = 0

    def open(self, record_id: str) -> Any:
        steps = self.records.setdefault(record_id, [])

        def finish() -> None:
            type(self).finished += 1

        return SimpleNamespace(log=lambda values, step: steps.append(step), finish=finish)


class Failing(Sink):
    """Sink failing at everything, like an unreachable service."""

    def start(self, step: int) -> None:
        raise RuntimeError("no route to the service")

    def write(self, metrics: StepMetrics) -> None:
        raise RuntimeError(f"step {metrics.step} was not taken")

    def close(self) -> None:
        raise RuntimeError("not finished")


@pytest.fixture
def context(raw_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunContext:
    monkeypatch.setitem(SINKS, "kept", SinkEntry(f"{__name__}:Kept", "in memory"))
    monkeypatch.setitem(SINKS, "failing", SinkEntry(f"{__name__}:Failing", "fails"))
    monkeypatch.setattr(Kept, "records", {})
    monkeypatch.setattr(Kept, "finished", 0)
    raw_config["logging"]["sinks"] = ["jsonl", "failing", "kept", "kept"]
    (tmp_path / "run").mkdir()
    return make_context(parse_config(raw_config, "test"), RunFolder(tmp_path / "run"))


def test_one_record_without_duplicates(context: RunContext) -> None:
    """Steps made again by a resumed run or after a rollback are in the record once."""
    for start, end in ((0, 4), (2, 6)):
        with make_callbacks(context) as callbacks:
            callbacks.on_start(start)
            for step in range(start + 1, end + 1):
                callbacks.on_step(make_metrics(step))
            callbacks.on_start(3)
            callbacks.on_step(make_metrics(4))
    assert list(Kept.records.values()) == [[1, 2, 3, 4, 5, 6]]
    assert Kept.finished == 2
    other = make_context(context.config, RunFolder(context.folder.directory / "other"))
    other.folder.directory.mkdir()
    Metrics(other).on_start(0)
    assert len(Kept.records) == 2


def test_faults_of_a_sink_cost_a_warning(context: RunContext, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), make_callbacks(context) as callbacks:
        callbacks.on_start(0)
        callbacks.on_start(0)
        callbacks.on_step(make_metrics(1))
        raise ZeroDivisionError
    told = capsys.readouterr().err
    for fault in ("no route to the service", "step 1 was not taken", "not finished"):
        assert told.count(f"warning: sink failing: RuntimeError: {fault}; training continues") == 1
    assert list(Kept.records.values()) == [[1]]
    assert Kept.finished == 1
    assert json.loads(context.folder.metrics.read_text())["step"] == 1


def test_a_tracker_that_cannot_start_says_so(context: RunContext, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged file is named. Losing steps costs one more warning, since no step is written until a restart."""
    path = context.folder.tracker("kept")
    path.write_text('{"step": 3}')
    with make_callbacks(context) as callbacks:
        callbacks.on_start(3)
        for step in (4, 5):
            callbacks.on_step(make_metrics(step))
    printed = capsys.readouterr().err
    assert printed.count(f"sink kept: {path}: cannot read id and step of the record (KeyError: 'id')") == 1
    assert printed.count("sink kept: no record is open, because the sink did not start: no step is written until") == 1
    assert not Kept.records


def test_faults_of_the_record_end_the_run(context: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SINKS, "jsonl", SinkEntry(f"{__name__}:Failing", "fails"))
    with pytest.raises(RuntimeError, match="no route to the service"):
        make_callbacks(context).on_start(0)


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_missing_package(name: str, raw_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.delitem(sys.modules, name, raising=False)
    raw_config["logging"]["sinks"] = ["jsonl", name]
    with pytest.raises(ValueError, match=rf'logging.sinks has {name}, .* -e "\.\[{name}\]", or remove {name}'):
        check_packages(parse_config(raw_config, "test").logging.sinks)
