"""Steps that are left out because loss or gradient are not finite: what the run tells, saves, and when it ends."""

import json
from pathlib import Path
from typing import Any

import torch

from megatape.checkpoint.manifest import MANIFEST, STATE
from megatape.checkpoint.reader import verified_checkpoint
from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.errors import TrainingDiverged
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.training.start import Start
from megatape.training.startup.build_trainer import build_trainer
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_data import open_run_data

# Name of a run -> steps whose loss is not finite, its changes of the configuration, and the step that it resumes from.
RUNS: dict[str, tuple[list[int], dict[str, Any], int | None]] = {
    "straight": ([2], {}, None),
    "resumed": ([], {}, 3),  # from the first's checkpoint
    "too many": ([2, 3], {"max_skipped_steps": 1}, None),
    "again and again": ([1, 3, 5], {"max_skipped_steps": 1}, None),
    "all": ([1, 2, 3, 4, 5], {}, None),
}


def test_skipped_steps(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["training"] |= {"steps": 5}
    raw_config["checkpoint"] = {"interval": 2, "keep": 5}
    raw_config["evaluation"]["interval"] = 100
    (errors,) = run_workers("tests.end_to_end.test_skipped_steps:train_runs", 1, raw_config, tmp_path / "workers")
    folders = {name: RunFolder(tmp_path / "run" / name) for name in RUNS}

    straight = folders["straight"]
    metrics = [json.loads(line) for line in straight.metrics.read_text().splitlines()]
    assert [entry["loss"] is None for entry in metrics] == [False, True, False, False, False]
    assert metrics[1]["skipped"] == "the loss is nan" and "skipped" not in metrics[2]
    events = [json.loads(line) for line in straight.events.read_text().splitlines()]
    (skipped,) = [event for event in events if event["event"] == "skipped"]
    assert skipped["step"] == 2 and skipped["detail"].endswith("samples 8 to 15): the loss is nan")
    assert "the step is skipped" in (tmp_path / "workers" / "rank0.log").read_text()
    # The save that was due after the step that was left out came with the next one.
    assert [path.name for path in straight.list_checkpoints()] == ["step-00000005", "step-00000004", "step-00000003"]
    saved = straight.checkpoint(3)
    assert json.loads((saved / MANIFEST).read_text())["features"] == ["skipped_steps"]
    state = json.loads((saved / STATE).read_text())
    assert (state["step"], state["updates"], state["samples"]) == (3, 2, 24)

    ends = [verified_checkpoint(folders[name].checkpoint(5)) for name in ("straight", "resumed")]
    for kind, names in ends[0].manifest.tensors.items():
        for name in names:
            assert torch.equal(*(end._file(kind, name).get_tensor(name) for end in ends)), (kind, name)

    assert errors == {
        "straight": "",
        "resumed": "",
        "too many": errors["too many"],
        "again and again": "",
        "all": errors["all"],
    }
    assert "samples 16 to 23): the loss is nan. That makes 2 skipped steps in a row" in errors["too many"]
    assert "training.max_skipped_steps allows 1" in errors["too many"]
    assert "the validation loss after step 5 is nan" in errors["all"]
    assert all(
        "There is no checkpoint from before: lower optimizer.learning_rate" in errors[name] for name in ("too many", "all")
    )
    assert not folders["too many"].list_checkpoints() and not folders["all"].list_checkpoints()


def train_runs(raw: dict[str, Any], topology: Topology) -> dict[str, str]:
    """The error that each of RUNS ended with, or ""."""
    return {name: _train(raw, topology, name) for name in RUNS}


def _train(raw: dict[str, Any], topology: Topology, name: str) -> str:
    faulty, changes, origin = RUNS[name]
    directory = Path(raw["run"]["directory"])
    raw = raw | {"training": raw["training"] | changes, "run": {"directory": str(directory / name)}}
    config = parse_config(raw, name)
    resume = str(RunFolder(directory / "straight").checkpoint(origin)) if origin else None
    run = build_trainer(config, open_run_data(config), topology, Lease(RunFolder(directory / name).lease), Start(resume))
    always = len(faulty) == config.training.steps

    def fault(module: Any, inputs: Any, output: Any) -> Any:
        bad = always or (module.training and run.state.step + 1 in faulty)
        return output * torch.nan if bad else output

    run.engine.deepspeed.module.register_forward_hook(fault)
    try:
        run.train()
    except TrainingDiverged as error:
        return str(error)
    return ""
