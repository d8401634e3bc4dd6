"""Steps whose loss jumps: taken, skipped, or skipped together with the steps that led to them."""

from collections.abc import Callable, Collection
from concurrent.futures import wait
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch

from megatape.checkpoint.format.manifest import RNG
from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.reliability.goodput.parts import TimePart
from megatape.reliability.goodput.read import read_run_time
from megatape.run_folder import RunFolder
from megatape.training.callbacks.metrics import Metrics
from megatape.training.reporting.step_metrics import StepMetrics
from megatape.training.start import Start
from megatape.training.steps import spike_policy
from megatape.training.steps.output import SkipReason
from megatape.training.trainer import Trainer
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import assert_identical, comparable_metrics, read_entries, verified_tensors
from tests.helpers.runs.small_run import small_config
from tests.helpers.runs.trainers import trainer_without_lease

MODULE = "tests.end_to_end.test_spikes"
STEPS = 20
SPIKE = 14  # Step with samples multiplying the loss by twenty, at 8 samples per step
ALWAYS = 99


class Run(NamedTuple):
    """A run with a spike.

    Attributes:
        training: Changes of the section training.
        num_jumps: How often the loss of step SPIKE jumps when it is computed.
        origin: Step of the checkpoint of "roll_back" to resume from, None for a new run.
    """

    training: dict[str, Any]
    num_jumps: int
    origin: int | None = None


RUNS = {
    "plain": Run({}, 0),
    "log": Run({}, ALWAYS),
    "transient": Run({"on_spike": "skip"}, 1),
    "skip": Run({"on_spike": "skip"}, ALWAYS),
    "never seen": Run({"skip_samples": [[104, 111]]}, 0),
    "roll_back": Run({"on_spike": "roll_back"}, ALWAYS),
    "resumed": Run({"on_spike": "roll_back"}, ALWAYS, origin=16),
    "without the samples": Run({"skip_samples": [[88, 111]]}, 0),
}


@pytest.fixture(scope="module")
def folders(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    """Train all of RUNS."""
    root = tmp_path_factory.mktemp("spikes")
    config = small_config(data_directory, root / "run")
    config["training"] |= {"steps": STEPS}
    config["zero"] = {"stage": 1}  # faster than stage 3, and nothing here depends on it
    config["checkpoint"] = {"interval": 4, "keep": 2}
    config["evaluation"]["interval"] = 100
    run_workers(f"{MODULE}:train_runs", 2, config, root / "workers")
    return {name: RunFolder(root / "run" / name) for name in RUNS}


def train_runs(raw: dict[str, Any], topology: Topology) -> None:
    notice_spikes_early()
    root = Path(raw["run"]["directory"])
    for name, plan in RUNS.items():
        changes = {"training": raw["training"] | plan.training, "run": {"directory": str(root / name)}}
        resume = None
        if plan.origin is not None:
            resume = str(RunFolder(root / "roll_back").checkpoint(plan.origin))
        run = trainer_without_lease(parse_config(raw | changes, name), topology, Start(resume))
        train(run, [SPIKE], plan.num_jumps)


def notice_spikes_early() -> None:
    """Let few steps be enough to notice a spike in this process."""
    spike_policy.WINDOW = 16
    spike_policy.MIN_STEPS = 8
    spike_policy.STABLE_STEPS = 3


def do_nothing(run: Trainer) -> None:
    pass


def train(run: Trainer, spikes: Collection[int], num_jumps: int, before_jump: Callable[[Trainer], object] = do_nothing) -> None:
    """Train with a loss that jumps.

    Args:
        run: Trainer.
        spikes: Steps whose loss jumps.
        num_jumps: Maximum number of jumps.
        before_jump: Called before each jump.
    """
    num_left = num_jumps

    def jump(module: Any, inputs: Any, output: Any) -> Any:
        nonlocal num_left
        if num_left == 0 or not module.training or run.progress.step + 1 not in spikes:
            return output
        num_left -= 1
        before_jump(run)
        return output * 20

    run.engine.deepspeed_engine.module.register_forward_hook(jump)
    run.train()


def final_tensors(folder: RunFolder) -> dict[str, torch.Tensor]:
    return verified_tensors(folder.checkpoint(STEPS))


def are_identical(folder: RunFolder, other: RunFolder) -> bool:
    """Whether two runs end with the same weights and states."""
    tensors = final_tensors(folder)
    others = final_tensors(other)
    return all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())


def events_of(folder: RunFolder, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_entries(folder.events) if event["event"] == kind]


def steps_of(folder: RunFolder, kind: str) -> list[int]:
    return [event["step"] for event in events_of(folder, kind)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["log", "transient", "skip", "roll_back"])
def test_a_spike_is_reported(folders: dict[str, RunFolder], name: str) -> None:
    (event,) = events_of(folders[name], "spike")
    assert "samples 104 to 111): the loss" in event["detail"]
    assert "standard deviations above the mean" in event["detail"]
    assert ("a transient fault" in event["detail"]) == (name == "transient")


@pytest.mark.slow
def test_a_logged_spike_is_taken(folders: dict[str, RunFolder]) -> None:
    assert not are_identical(folders["log"], folders["plain"])
    assert steps_of(folders["log"], "skipped") == []


@pytest.mark.slow
def test_a_transient_spike_changes_nothing(folders: dict[str, RunFolder]) -> None:
    """The step is computed again, without a jump."""
    assert_identical(final_tensors(folders["transient"]), final_tensors(folders["plain"]))


@pytest.mark.slow
def test_a_skipped_spike_equals_samples_that_are_never_seen(folders: dict[str, RunFolder]) -> None:
    assert_identical(final_tensors(folders["skip"]), final_tensors(folders["never seen"]))
    assert not are_identical(folders["skip"], folders["plain"])
    assert steps_of(folders["skip"], "skipped") == [SPIKE]


@pytest.mark.slow
def test_a_rollback_skips_the_steps_that_led_to_the_spike(folders: dict[str, RunFolder]) -> None:
    rolled_back = folders["roll_back"]
    assert_identical(final_tensors(rolled_back), final_tensors(folders["without the samples"]))
    assert not are_identical(rolled_back, folders["skip"])
    expected_metrics = as_rolled_back(comparable_metrics(folders["without the samples"]))
    assert comparable_metrics(rolled_back) == expected_metrics, "nothing remains of undone steps"
    assert steps_of(rolled_back, "skipped") == [12, 13, 14]
    # Stable steps have followed step 8's checkpoint, not step 12's.
    (rollback,) = events_of(rolled_back, "rollback")
    assert rollback["step"] == 8
    assert "step-00000008; samples 88 to 111 will be skipped" in rollback["detail"]


@pytest.mark.slow
def test_the_time_of_steps_before_a_rollback_is_lost(folders: dict[str, RunFolder]) -> None:
    """The time from the checkpoint to the rollback, and of the step that led to it, is neither new nor missing."""
    events = read_entries(folders["roll_back"].events)
    saved = next(event for event in events if event["event"] == "checkpoint" and event["saved_step"] == 8)
    rollback = next(event for event in events if event["event"] == "rollback")
    run_time = read_run_time(folders["roll_back"])
    parts = run_time.parts
    undone = rollback["clock"]["seconds"]["new_steps"] - saved["clock"]["seconds"]["new_steps"]
    assert undone > 0
    assert parts[TimePart.REPEATED_STEPS] == pytest.approx(undone + rollback["clock"]["seconds"]["repeated_steps"], abs=0.01)
    assert parts[TimePart.SKIPPED_STEPS] > 0
    assert run_time.num_rollbacks == 1
    passed = events[-1]["time"] - events[0]["time"]
    before = sum(events[0]["clock"]["seconds"].values())
    assert parts.total == pytest.approx(before + passed, rel=0.01, abs=0.05)


@pytest.mark.slow
def test_a_run_resumes_exactly_after_a_rollback(folders: dict[str, RunFolder]) -> None:
    assert_identical(final_tensors(folders["resumed"]), final_tensors(folders["roll_back"]))


def as_rolled_back(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the metrics of a run configured to skip steps as those of a run that skips them after a rollback."""
    for entry in entries:
        if entry.get("skipped") == SkipReason.CONFIGURED.value:
            entry["skipped"] = SkipReason.ROLLED_BACK.value
    return entries


class Case(NamedTuple):
    """A run that goes back at each spike, if it can.

    Attributes:
        sections: Changes of the configuration by section.
        spikes: Steps whose loss jumps.
        corrupted: Steps of checkpoints that are corrupted before the spike.
        rollbacks: Steps to which the run goes back.
        equal: Name of the run that it equals, None if there is none.
    """

    sections: dict[str, dict[str, Any]]
    spikes: Collection[int] = ()
    corrupted: tuple[int, ...] = ()
    rollbacks: tuple[int, ...] = ()
    equal: str | None = None


WITHOUT_SAMPLES = Case({"training": {"skip_samples": [[88, 111]]}})
IN_BACKGROUND = {"interval": 1, "keep": 1, "background": True}
CASES = {
    "plain": Case({}),
    "without the samples": WITHOUT_SAMPLES,
    "often": Case(
        {"checkpoint": {"interval": 1, "keep": 1}},
        spikes=[14],
        rollbacks=(9,),
        equal="without the samples",
    ),
    "older": Case({}, spikes=[14], corrupted=(8,), rollbacks=(4,), equal="without the samples"),
    "newest": Case(
        {"checkpoint": {"interval": 5}},
        spikes=[14],
        corrupted=(10,),
        rollbacks=(5,),
        equal="without the samples",
    ),
    # This run rolls back, is killed, and meets no spike again.
    "killed": Case({}, spikes=[14], rollbacks=(8,), equal="plain"),
}
MORE_CASES = {
    "without the samples": WITHOUT_SAMPLES,
    "without both ranges": Case({"training": {"skip_samples": [[88, 111], [128, 151]]}}),
    "skip": Case({"training": {"on_spike": "skip"}}, spikes=[14]),
    "in the background": Case(
        {"checkpoint": IN_BACKGROUND},
        spikes=[14],
        rollbacks=(9,),
        equal="without the samples",
    ),
    "none": Case({}, spikes=[14], corrupted=(4, 8), equal="skip"),
    "twice": Case(
        {"checkpoint": {"interval": 8}},
        spikes=[14, 19],
        rollbacks=(8, 8),
        equal="without both ranges",
    ),
    "for ever": Case(
        {"checkpoint": {"interval": 1, "background": True}},
        spikes=range(14, 21),
        rollbacks=(10,),
    ),
}
TABLES = {"default": CASES, "more": MORE_CASES}


@pytest.mark.parametrize("table", ["default", pytest.param("more", marks=pytest.mark.slow)])
def test_rollbacks(raw_config: dict[str, Any], tmp_path: Path, table: str) -> None:
    """A run goes back however few checkpoints it keeps, to a valid one, or skips the step.

    A kill does not bring back what was undone.
    """
    raw_config["training"] |= {"steps": STEPS, "on_spike": "roll_back"}
    raw_config["zero"] = {"stage": 1}
    raw_config["checkpoint"] = {"interval": 4, "keep": 4}
    raw_config["evaluation"]["interval"] = 100

    payload = {"config": raw_config, "table": table}
    run_workers(f"{MODULE}:train_all", 1, payload, tmp_path / "workers")

    cases = TABLES[table]
    folders = {name: RunFolder(tmp_path / "run" / name) for name in cases}
    for name, case in cases.items():
        folder = folders[name]
        assert steps_of(folder, "rollback") == list(case.rollbacks), name
        if case.equal is not None:
            expected = folders[case.equal]
            assert_identical(final_tensors(folder), final_tensors(expected), name)
            assert comparable_metrics(folder) == as_rolled_back(comparable_metrics(expected)), name
        names = sorted(path.name for path in folder.checkpoints.iterdir())
        set_aside = [path for path in names if "." in path]
        # A run that cannot go back moves nothing.
        moved = case.corrupted if case.rollbacks else ()
        assert set_aside == [f"step-{step:08d}.corrupted" for step in moved], name
        if name == "newest":
            assert "step-00000010" in names, "the step of the last save before the rollback is saved again"
        if name in ("often", "in the background"):
            assert len(names) == 3, "the one that is kept, the one before the spike, and the next"


def train_all(payload: dict[str, Any], topology: Topology) -> None:
    notice_spikes_early()
    for name, case in TABLES[payload["table"]].items():
        train_one(name, case, payload["config"], topology)


def train_one(name: str, case: Case, raw: dict[str, Any], topology: Topology) -> None:
    changes = {section: raw[section] | values for section, values in case.sections.items()}
    changes["run"] = {"directory": str(Path(raw["run"]["directory"]) / name)}
    config = parse_config(raw | changes, name)

    def corrupt(run: Trainer) -> None:
        background = run.checkpoints.saver.background
        if background is not None and background.in_flight is not None:
            # This step must count the save as ended, before the run goes back or not.
            wait([background.in_flight.result], 60)
        if run.progress.step + 1 != SPIKE:
            return
        for step in case.corrupted:
            rng = run.environment.folder.checkpoint(step) / RNG
            rng.write_bytes(bytes(rng.stat().st_size))

    spikes = case.spikes
    if name == "killed":
        run = trainer_without_lease(config, topology, Start("auto"))
        with end_after_second(9), pytest.raises(ZeroDivisionError):
            train(run, spikes, ALWAYS)
        spikes = ()
    run = trainer_without_lease(config, topology, Start("auto"))
    train(run, spikes, ALWAYS, corrupt)


def end_after_second(step: int) -> Any:
    """Return a patch that ends a run once the metrics of a step have been written twice."""
    on_step = Metrics.on_step
    written: list[int] = []

    def write_and_end(metrics: Metrics, step_metrics: StepMetrics) -> None:
        on_step(metrics, step_metrics)
        written.append(step_metrics.step)
        if written.count(step) == 2:
            raise ZeroDivisionError("kill -9")

    return patch.object(Metrics, "on_step", write_and_end)
