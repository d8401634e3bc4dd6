"""Repeating recorded steps, as a CUDA graph does, on a CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.config import Config, parse_config
from megatape.data.synthetic.folder import write_task
from megatape.data.synthetic.task import TRAIN, VALIDATION
from megatape.lab.study.execution.one_process.learner import Learner
from megatape.lab.study.execution.one_process.step_graph import Called, Recorded, StepGraph
from megatape.lab.study.execution.one_process.training import train
from tests.helpers.lab.capitals import QUICK, Capitals
from tests.helpers.runs.cpu_recorder import CpuRecorder
from tests.helpers.runs.run_data import open_run_data

CPU = torch.device("cpu")
STEPS = 9


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("capitals") / "data"
    write_task(Capitals("capitals", "tiny"), {TRAIN: QUICK.batch * STEPS, VALIDATION: 4}, folder)
    return folder


def config_of(encoding: str, seed: int, rate: float, data: Path) -> Config:
    raw = QUICK.config(Capitals("capitals", "tiny"), str(data), 9)
    raw["model"]["encoding"] = encoding
    raw["training"] |= {"steps": STEPS, "seed": seed}
    raw["optimizer"]["learning_rate"] = rate
    raw["evaluation"] = {"interval": STEPS, "samples": 4}
    raw["logging"] = {"interval": 1}
    raw["run"] = {"directory": "none"}
    return parse_config(raw, "here")


class WithoutPlaces(Learner):
    """Learner that computes all tokens, as on a GPU."""

    def read(self, step: int) -> Any:
        return super().read(step)._replace(places=None)


def losses_of(runs: list[Config], graph: StepGraph) -> dict[int, list[float]]:
    """Train runs together, and return each one's losses by seed."""
    losses: dict[int, list[float]] = {}

    def report(learner: Learner, step: int) -> None:
        losses.setdefault(learner.config.training.seed, []).append(float(learner.loss))

    train([WithoutPlaces(config, open_run_data(config), CPU) for config in runs], graph, report)
    return losses


@pytest.mark.parametrize("encoding", ["rope", "tape_fox", "randpe", "pope"])
def test_recorded_steps_train_alike(encoding: str, data: Path) -> None:
    """Notices a value that Python computes in each step, such as a rate, and tensors that a step replaces."""
    runs = [config_of(encoding, 1, 3e-3, data), config_of(encoding, 2, 1e-2, data)]
    recorder = CpuRecorder()

    recorded = losses_of(runs, Recorded(recorder, CPU))

    assert recorder.num_recorded == 1
    assert recorder.num_replayed == STEPS - 3
    called = losses_of(runs, Called())
    for seed, losses in called.items():
        assert recorded[seed] == pytest.approx(losses, rel=1e-6), f"seed {seed}"
    assert called[1] != pytest.approx(called[2], rel=1e-3), "runs with other seeds and rates"


def test_runs_together_train_as_alone(data: Path) -> None:
    """Notices state shared by runs."""
    runs = [config_of("tape", 1, 3e-3, data), config_of("tape", 2, 1e-2, data)]
    together = losses_of(runs, Called())
    for run in runs:
        seed = run.training.seed
        assert losses_of([run], Called())[seed] == together[seed]
