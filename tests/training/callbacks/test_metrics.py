"""metrics.jsonl, TensorBoard, console and resolved configuration after a real run, and the dry run."""

import json
import os
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from megatape.accounting.whole_model.parameters import count_parameters
from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.errors import LeaseLost, TrainingDiverged
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder, read_metrics
from megatape.software import package_version, versions
from megatape.tools.planner.report.report import report
from megatape.training.position_views.view import PositionView
from megatape.training.reporting.hardware import peak_memory
from megatape.training.reporting.step_metrics import StepMetrics
from megatape.training.sinks import tensorboard
from megatape.training.sinks.json_lines import JsonLines
from megatape.training.validation.result import Validation
from megatape.utils.files.json_lines import read_lines
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.position_views import some_view
from tests.helpers.runs.run_context import make_callbacks, make_context
from tests.helpers.runs.training_cases import TRAIN_CASES, train_cases


def test_messages_of_a_run(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["evaluation"]["interval"] = 2
    cases = {"config": raw_config, "cases": [{"name": "told"}]}
    run_workers(TRAIN_CASES, 2, cases, tmp_path / "workers")
    run = Path(raw_config["run"]["directory"]) / "told"

    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    check_metrics(entries)
    check_tensorboard(run / "tensorboard", entries)
    check_events(run / "events.jsonl")
    resolved = json.loads((run / "config.json").read_text())
    assert resolved["model"]["head_dim"] == 4
    assert resolved["zero"]["stage"] == 3
    console = (tmp_path / "workers" / "rank0.log").read_text()
    assert "unigram" in console
    assert "step 4/4 [####################]" in console
    assert "step 4" not in (tmp_path / "workers" / "rank1.log").read_text()


def check_metrics(entries: list[dict[str, Any]]) -> None:
    """Check the lines in metrics.jsonl: four steps with 8 samples of 32 tokens, evaluating after every other step."""
    assert [entry["step"] for entry in entries] == [1, 2, 3, 4]
    assert [entry["samples"] for entry in entries] == [8, 16, 24, 32]
    assert [entry["tokens"] for entry in entries] == [256, 512, 768, 1024]
    fields = {"step", "loss", "grad_norm", "lr", "tokens", "samples", "digest", "seconds", "peak_memory"}
    evaluated_fields = fields | {"validation_loss", "validation_selection"}
    assert [set(entry) for entry in entries] == [fields, evaluated_fields] * 2


def check_tensorboard(folder: Path, entries: list[dict[str, Any]]) -> None:
    """Check that TensorBoard has the same numbers as metrics.jsonl, and the position views."""
    board = EventAccumulator(str(folder))
    board.Reload()
    logged = {tag: [event.value for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]}
    assert logged["loss/train"] == pytest.approx([entry["loss"] for entry in entries])
    assert logged["gradient norm"] == pytest.approx([entry["grad_norm"] for entry in entries])
    assert logged["learning rate"] == pytest.approx([entry["lr"] for entry in entries])
    assert logged["loss/validation"] == pytest.approx([entries[1]["validation_loss"], entries[3]["validation_loss"]])
    assert min(logged["speed/tokens per second"]) > 0
    assert min(logged["memory/peak GiB"]) > 0
    assert logged["position tensor/norm in layer 1"] == pytest.approx([1, 1])
    first_norm = logged["position tensor/norm in layer 2"][0]
    assert first_norm == pytest.approx(1, abs=0.3)
    assert first_norm != 1.0
    assert board.Tags()["images"] == ["position tensor/dot products by layer"]
    assert board.Tags()["histograms"] == ["position tensor/gains of layer 1"]


def check_events(path: Path) -> None:
    """Check the lines in events.jsonl, and the environment that `megatape report` reads from the first one."""
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(event["event"], event["step"]) for event in events] == [("started", 0), ("checkpoint", 4), ("finished", 4)]
    started = events[0]
    assert started["detail"] == "2 ranks on cpu"
    environment = started["environment"]
    assert environment["ranks"] == 2
    assert environment["hosts"] == 1
    assert environment["megatape"] == package_version()
    assert environment["python/torch/deepspeed"] == versions()
    assert environment["device"]
    assert environment["command"]
    assert environment["sample_flops"] > 1000


def test_peak_memory_is_that_of_the_process() -> None:
    """The parent's memory does not count."""
    taken = bytearray(b"1") * 2**30
    code = "from megatape.training.reporting.hardware import peak_memory; print(peak_memory())"
    child = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert 2**24 < child < len(taken) < peak_memory()


def log_on_a_full_disk(payload: dict[str, Any], topology: Topology) -> str:
    """Log metrics for nine steps. During the fourth to sixth, no file can grow. Returns the printed lines."""
    config = parse_config(payload["config"], "test")
    folder = RunFolder(Path(config.run.directory))
    folder.directory.mkdir()
    reader, writer = os.pipe()
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    context = make_context(config, folder, topology=topology)
    with patch.object(tensorboard, "RETRY_SECONDS", 0.0), make_callbacks(context) as callbacks:
        callbacks.on_start(0)
        for number in (1, 2):
            os.dup2(writer, number)
        for step in range(1, 10):
            if step == 4:
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, unlimited[1]))
            if step == 7:
                resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
            context.log.step = step
            callbacks.on_step(StepMetrics(step, 1.0, 1.0, 1.0, step, step, 1.0, 1, Validation(1.0, some_view())))
            context.log.record("spike")
            metrics: Any = callbacks._members["metrics"]
            (board,) = (sink for sink in metrics._sinks.values() if isinstance(sink, tensorboard.TensorBoard))
            if board._writer:
                with suppress(OSError):
                    # The writer would flush only every two minutes.
                    board._writer.flush()
    os.set_blocking(reader, False)
    return os.read(reader, 2**16).decode()


def test_full_disk(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Training continues with one warning. Once there is room, it logs again, including the missed events, views and steps.

    The proof of `megatape ledger` needs the steps.
    """
    target = "tests.training.callbacks.test_metrics:log_on_a_full_disk"
    (printed,) = run_workers(target, 1, {"config": raw_config}, tmp_path / "workers")
    run = RunFolder(Path(raw_config["run"]["directory"]))
    assert [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()] == list(range(1, 10))
    assert list(run.list_position_views()) == list(range(1, 10))
    assert [event["step"] for _, event in read_lines(run.events)] == list(range(1, 10))
    assert all(PositionView.load(path).tokens for path in run.list_position_views().values())
    board = EventAccumulator(str(run.tensorboard))
    board.Reload()
    assert {1, 2, 3, 7, 8, 9} <= {event.step for event in board.Scalars("loss/train")}
    warnings = [line for line in printed.splitlines() if line.startswith("warning: metrics could not be written")]
    assert len(warnings) == 1, printed
    assert "File too large" in warnings[0], printed


def note_syncs(payload: dict[str, Any], topology: Topology) -> list[tuple[str, int]]:
    """Train, and record what is synced to the disk.

    Returns:
        The name of each synced file, in order, with the number of lines that metrics.jsonl had then, or 0 for other files.
    """
    synced = []
    metrics = RunFolder(Path(payload["config"]["run"]["directory"], "run")).metrics
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        name = path.name
        # The manifest is written under a temporary name.
        if name.startswith("manifest.json."):
            name = "manifest.json"
        num_lines = 0
        if path == metrics:
            num_lines = len(metrics.read_bytes().splitlines())
        synced.append((name, num_lines))
        fsync(descriptor)

    with patch.object(os, "fsync", noted):
        train_cases(payload, topology)
    return synced


@pytest.mark.parametrize("background", [False, True])
def test_metrics_are_on_disk_before_a_checkpoint(raw_config: dict[str, Any], tmp_path: Path, background: bool) -> None:
    raw_config["checkpoint"] = {"interval": 2, "background": background}
    payload = {"config": raw_config, "cases": [{"name": "run"}]}
    (synced,) = run_workers("tests.training.callbacks.test_metrics:note_syncs", 1, payload, tmp_path / "workers")
    assert [entry for entry in synced if entry[0] in ("metrics.jsonl", "manifest.json")] == [
        ["metrics.jsonl", 2],
        ["manifest.json", 0],
        ["metrics.jsonl", 4],
        ["manifest.json", 0],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("background", [False, True])
def test_a_save_waits_for_the_metrics_of_its_steps(raw_config: dict[str, Any], tmp_path: Path, background: bool) -> None:
    """The disk refuses the first steps and the first save, or all metrics: then a save waits until the next one is due."""
    raw_config["checkpoint"] = {"interval": 3, "background": background}
    raw_config["training"]["steps"] = 8
    cases = [{"name": name, "fault": ["full disk", count]} for name, count in (("some", 4), ("all", 1000))]
    run_workers(TRAIN_CASES, 2, {"config": raw_config, "cases": cases}, tmp_path / "workers")
    saved = {}
    for case in cases:
        folder = RunFolder(Path(raw_config["run"]["directory"], str(case["name"])))
        events = [event for _, event in read_lines(folder.events)]
        saved[case["name"]] = [int(event["detail"][5:13]) for event in events if event["event"] == "checkpoint"]
    assert saved == {"some": [4, 6, 8], "all": [6, 8]}


def test_events(raw_config: dict[str, Any]) -> None:
    """The error ending a run is recorded, and a truncated line spoils no other."""
    config = parse_config(raw_config, "test")
    folder = RunFolder(Path(config.run.directory))
    folder.directory.mkdir()
    context = make_context(config, folder)
    context.log.step = 7
    with pytest.raises(TrainingDiverged), make_callbacks(context):
        context.log.record("resumed", "from step-00000007")
        with folder.events.open("r+b") as file:
            file.truncate(20)
        context.log.record("checkpoint", "step-00000007")
        raise TrainingDiverged("the loss is nan")
    events = [event for _, event in read_lines(folder.events)]
    assert [(event["event"], event["step"], event["detail"]) for event in events] == [
        ("checkpoint", 7, "step-00000007"),
        ("failed", 7, "the loss is nan"),
    ]
    assert abs(events[0]["time"] - time.time()) < 60


def test_dry_run(raw_config: dict[str, Any]) -> None:
    """A dry run without a cluster plans for one rank."""
    config = parse_config(raw_config, "test")
    total = count_parameters(config.model).total
    text = report(config)
    assert f"{total:,}" in text
    assert "8 = 4 micro x 1 data-parallel rank x 2 accumulated" in text
    for part, bytes_per_parameter in {"gradients": 4, "master weights": 4, "moments": 8}.items():
        assert f"{part} {total * bytes_per_parameter / 1024:.2f} KiB" in " ".join(text.split()), part
    raw_config["training"]["micro_batch_size"] = 3
    with pytest.raises(ValueError, match="accumulation 2.667"):
        report(parse_config(raw_config, "test"))


def test_folder_of_another_run_is_not_written(raw_config: dict[str, Any]) -> None:
    """Neither metrics, events nor the error ending the run are written."""
    config = parse_config(raw_config, "test")
    folder = RunFolder(Path(config.run.directory))
    lease = Lease(folder.lease)
    assert lease.attempt()
    with pytest.raises(LeaseLost), make_callbacks(make_context(config, folder, lease)) as callbacks:
        folder.lease.write_text("another")
        lease._renewed -= 3600
        callbacks.on_step(StepMetrics(1, 1.0, 1.0, 1.0, 1, 1, 1.0, 1, None))
    assert [path.name for path in folder.directory.iterdir()] == ["lease.json"]
    lease.release()


def test_mean_speed_is_of_this_process(raw_config: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A resumed run reports an earlier process's last step with its evaluation, which says nothing about its speed."""
    raw_config["logging"]["sinks"] = ["jsonl", "console"]
    caplog.set_level("INFO")
    context = make_context(parse_config(raw_config, "test"), RunFolder(tmp_path))
    length = context.config.data.sequence_length
    batch = context.config.training.global_batch_size
    # A callback coming before the metrics may ask at any time.
    assert context.speed.mean() == (0.0, None)
    with make_callbacks(context) as callbacks:
        callbacks.on_start(2)
        callbacks.on_step(StepMetrics(2, 1.0, 1.0, 1.0, 1, 1, 100.0, 1, Validation(1.0, None)))
        assert not context.speed.has_steps
        callbacks.on_step(StepMetrics(3, 1.0, 1.0, 1.0, 1, 1, 2.0, 1, None))
    assert context.speed.mean().tokens == batch * length / 2.0
    assert context.speed.seconds_left(3) == 2.0
    earlier, own = [record.message for record in caplog.records if record.message.startswith("step")]
    assert "tokens/s" not in earlier
    assert "tokens/s" in own


def test_stale_file_is_reopened(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """After the file server restarts, the file is opened again without losing a step."""
    sink = JsonLines(make_context(parse_config(raw_config, "test"), RunFolder(tmp_path)))
    for step in range(1, 5):
        if step == 3:
            assert sink._file
            with open(os.devnull, "rb") as unwritable:
                os.dup2(unwritable.fileno(), sink._file.fileno())
        with suppress(OSError):
            sink.write(StepMetrics(step, 1.0, 1.0, 1.0, 1, 1, 1.0, 1, None))
    sink.close()
    assert list(read_metrics(tmp_path / "metrics.jsonl")) == [1, 2, 3, 4]
