"""Steps whose loss jumps: taken, left out, or left out together with those that led there."""

import json
from collections.abc import Callable, Collection
from concurrent.futures import wait
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from megatape.checkpoint.manifest import RNG
from megatape.checkpoint.reader import verified_checkpoint
from megatape.config import Config, parse_config
from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.training.callbacks.metrics import Metrics
from megatape.training.reporting.step_metrics import StepMetrics
from megatape.training.start import Start
from megatape.training.startup.build_trainer import build_trainer
from megatape.training.steps import spike_policy
from megatape.training.trainer import Trainer
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_data import open_run_data

SPIKE = 14  # step whose samples give a loss of twenty times the usual, 8 samples a step
# Name of a run -> its changes of the configuration, how often the loss of the step jumps when it is computed, and the step that
# it resumes from.
RUNS: dict[str, tuple[dict[str, Any], int, int | None]] = {
    "plain": ({}, 0, None),
    "log": ({}, 99, None),
    "transient": ({"on_spike": "skip"}, 1, None),
    "skip": ({"on_spike": "skip"}, 99, None),
    "never seen": ({"skip_samples": [[104, 111]]}, 0, None),
    "rewind": ({"on_spike": "rewind"}, 99, None),
    "resumed": ({"on_spike": "rewind"}, 99, 16),
    "led there": ({"skip_samples": [[88, 111]]}, 0, None),
}


@pytest.mark.slow
def test_spikes(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["training"] |= {"steps": 20}
    raw_config["zero"] = {"stage": 1}  # faster than stage 3, and nothing here depends on it
    raw_config["checkpoint"] = {"interval": 4, "keep": 2}
    raw_config["evaluation"]["interval"] = 100
    run_workers("tests.end_to_end.test_spikes:train_runs", 2, raw_config, tmp_path / "workers")
    runs = {name: RunFolder(tmp_path / "run" / name) for name in RUNS}
    ends = {name: _end(folder) for name, folder in runs.items()}
    assert _equal(ends["transient"], ends["plain"])
    assert not _equal(ends["log"], ends["plain"])
    assert _equal(ends["skip"], ends["never seen"]) and not _equal(ends["skip"], ends["plain"])
    assert _equal(ends["rewind"], ends["led there"]) and not _equal(ends["rewind"], ends["skip"])
    assert _equal(ends["resumed"], ends["rewind"])
    assert _metrics(runs["rewind"]) == _metrics(runs["led there"])  # nothing of what was undone is left

    events = {name: _events(folder) for name, folder in runs.items()}
    for name in ("log", "transient", "skip", "rewind"):
        (told,) = [detail for event, step, detail in events[name] if event == "spike"]
        assert "samples 104 to 111): the loss" in told and "standard deviations above the mean" in told
        assert ("a transient fault" in told) == (name == "transient")
    assert not [event for event, *_ in events["log"] if event == "skipped"]
    assert [step for event, step, _ in events["skip"] if event == "skipped"] == [SPIKE]
    assert [step for event, step, _ in events["rewind"] if event == "skipped"] == [12, 13, 14]
    # Calm steps have followed that of step 8, not that of step 12.
    (went,) = [(step, detail) for event, step, detail in events["rewind"] if event == "rollback"]
    assert went[0] == 8 and "step-00000008; samples 88 to 111 will be skipped" in went[1]


def train_runs(raw: dict[str, Any], topology: Topology) -> None:
    spike_policy.WINDOW = 16
    spike_policy.MIN_STEPS = 8
    spike_policy.STABLE_STEPS = 3
    for name, (changes, times, origin) in RUNS.items():
        folder = RunFolder(Path(raw["run"]["directory"]) / name)
        training = raw["training"] | changes
        config = parse_config(raw | {"training": training, "run": {"directory": str(folder.directory)}}, name)
        resume = str(RunFolder(folder.directory.parent / "rewind").checkpoint(origin)) if origin else None
        _train(build_trainer(config, open_run_data(config), topology, Lease(folder.lease), Start(resume)), times)


def _train(
    run: Trainer, times: int, spikes: Collection[int] = (SPIKE,), before: Callable[[Trainer], object] = lambda run: None
) -> None:
    """Train. spikes: steps whose loss jumps, `times` times. before: called before each loss that jumps."""
    left = times

    def jump(module: Any, inputs: Any, output: Any) -> Any:
        nonlocal left
        if left and module.training and run.state.step + 1 in spikes:
            left -= 1
            before(run)
            return output * 20
        return output

    run.engine.deepspeed.module.register_forward_hook(jump)
    run.train()


# Name of a run -> its changes of sections, and the steps whose loss jumps. All of them go back, if they can.
REWINDS: dict[str, tuple[dict[str, Any], Collection[int]]] = {
    "plain": ({}, ()),
    "led there": ({"training": {"skip_samples": [[88, 111]]}}, ()),
    "often": ({"checkpoint": {"interval": 1, "keep": 1}}, (14,)),
    "older": ({}, (14,)),
    "newest": ({"checkpoint": {"interval": 5}}, (14,)),
    "killed": ({}, (14,)),
}
MORE_REWINDS: dict[str, tuple[dict[str, Any], Collection[int]]] = {
    "led there": REWINDS["led there"],
    "led there twice": ({"training": {"skip_samples": [[88, 111], [128, 151]]}}, ()),
    "skip": ({"training": {"on_spike": "skip"}}, (14,)),
    "in the background": ({"checkpoint": {"interval": 1, "keep": 1, "background": True}}, (14,)),
    "none": ({}, (14,)),
    "twice": ({"checkpoint": {"interval": 8}}, (14, 19)),
    "for ever": ({"checkpoint": {"interval": 1, "background": True}}, range(14, 21)),
}
CORRUPTED: dict[str, tuple[int, ...]] = {"older": (8,), "newest": (10,), "none": (4, 8)}  # steps of checkpoints
# Name of a run -> the steps to which it went back, and the run that it equals.
GONE_BACK = {
    "often": ([9], "led there"),
    "in the background": ([9], "led there"),
    "older": ([4], "led there"),
    "newest": ([5], "led there"),
    "none": ([], "skip"),
    "killed": ([8], "plain"),  # it goes back, is killed, and meets no spike again
    "twice": ([8, 8], "led there twice"),
    "for ever": ([10], None),
}


@pytest.mark.parametrize("cases", ["REWINDS", pytest.param("MORE_REWINDS", marks=pytest.mark.slow)])
def test_rewinds(raw_config: dict[str, Any], tmp_path: Path, cases: str) -> None:
    """A run goes back however few checkpoints it keeps, to a valid one, or leaves the step out; a kill does not bring back what
    was undone."""
    raw_config["training"] |= {"steps": 20, "on_spike": "rewind"}
    raw_config["zero"] = {"stage": 1}
    raw_config["checkpoint"] = {"interval": 4, "keep": 4}
    raw_config["evaluation"]["interval"] = 100
    payload = {"config": raw_config, "cases": cases}
    run_workers("tests.end_to_end.test_spikes:train_rewinds", 1, payload, tmp_path / "workers")
    runs = {name: RunFolder(tmp_path / "run" / name) for name in globals()[cases]}
    left = {name: sorted(path.name for path in folder.checkpoints.iterdir()) for name, folder in runs.items()}
    for name in runs.keys() & GONE_BACK:
        steps, equal = GONE_BACK[name]
        assert [step for event, step, _ in _events(runs[name]) if event == "rollback"] == steps, name
        if equal:
            assert _equal(_end(runs[name]), _end(runs[equal])), name
            assert _metrics(runs[name]) == _metrics(runs[equal]), name
        aside = [f"step-{step:08d}.corrupted" for step in CORRUPTED.get(name, ())]
        assert [path for path in left[name] if "." in path] == aside, name
    if "newest" in left:
        assert "step-00000010" in left["newest"], "the step of the last save before the rollback is saved again"
    for name in left.keys() & {"often", "in the background"}:
        assert len(left[name]) == 3, "the one that is kept, the calm one, and the next"


def train_rewinds(payload: dict[str, Any], topology: Topology) -> None:
    spike_policy.WINDOW = 16
    spike_policy.MIN_STEPS = 8
    spike_policy.STABLE_STEPS = 3
    raw = payload["config"]
    for name, (changes, jumps) in globals()[payload["cases"]].items():
        folder = RunFolder(Path(raw["run"]["directory"]) / name)
        sections = {section: raw[section] | values for section, values in changes.items()}
        config = parse_config(raw | sections | {"run": {"directory": str(folder.directory)}}, name)

        def begin(config: Config = config, folder: RunFolder = folder) -> Trainer:
            return build_trainer(config, open_run_data(config), topology, Lease(folder.lease), Start("auto"))

        def corrupt(run: Trainer, steps: tuple[int, ...] = CORRUPTED.get(name, ())) -> None:
            background = run.checkpoints.saver.background
            if background is not None and background.in_flight is not None:
                wait([background.in_flight.result], 60)  # so that this step counts it as ended, before the run goes back or not
            for step in steps if run.state.step + 1 == SPIKE else ():
                rng = run.environment.folder.checkpoint(step) / RNG
                rng.write_bytes(bytes(rng.stat().st_size))

        written: list[int] = []

        def write(metrics: Metrics, step: StepMetrics, write: Any = Metrics.on_step, written: list[int] = written) -> None:
            write(metrics, step)
            written.append(step.step)
            if written.count(9) == 2:
                raise ZeroDivisionError("kill -9")

        if name == "killed":
            with patch.object(Metrics, "on_step", write), pytest.raises(ZeroDivisionError):
                _train(begin(), 99, jumps)
            jumps = ()
        _train(begin(), 99, jumps, corrupt)


def _end(folder: RunFolder) -> dict[str, torch.Tensor]:
    checkpoint = verified_checkpoint(folder.checkpoint(20))
    kinds = checkpoint.manifest.tensors.items()
    return {f"{kind} {name}": checkpoint._file(kind, name).get_tensor(name) for kind, names in kinds for name in names}


def _equal(these: dict[str, torch.Tensor], those: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, those[name]) for name, tensor in these.items())


def _metrics(folder: RunFolder) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("seconds", "peak_memory")} for line in lines]


def _events(folder: RunFolder) -> list[tuple[str, int, str]]:
    lines = [json.loads(line) for line in folder.events.read_text().splitlines()]
    return [(line["event"], line["step"], line["detail"]) for line in lines]
