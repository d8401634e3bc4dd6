"""The engine one_process computes what `pretrain` computes, for each encoding."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from megatape.config import Config, parse_config
from megatape.data.synthetic.folder import write_task
from megatape.data.synthetic.task import TRAIN, VALIDATION
from megatape.lab.study.execution.one_process.agreement import disagreement
from megatape.lab.study.execution.one_process.learner import Learner
from megatape.lab.study.execution.one_process.step_graph import Called
from megatape.lab.study.execution.one_process.training import TrainedModel, train
from megatape.lab.study.suite.sizes import SIZES
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from tests.helpers.checks.bounds import (
    ONE_PROCESS_GRADIENTS,
    ONE_PROCESS_LOSSES,
    ONE_PROCESS_WEIGHTS,
    assert_within,
)
from tests.helpers.lab.pretrain_trace import TRACE, Trace, read_trace
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_data import open_run_data

pytestmark = pytest.mark.numerics

CPU = torch.device("cpu")
BATCH = 8
STEPS = 20
# Weights are compared after this step. Later ones differ more, because each step amplifies earlier rounding.
COMPARED_STEP = 10
# Tensors whose gradient is below this share of all gradients are compared with the share: they are zero but for rounding.
NEGLIGIBLE = 1e-3
# Gradients below this share of all gradients are rounding alone.
ROUNDING = 1e-6


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples for a task, some shorter than others."""
    folder = tmp_path_factory.mktemp("task") / "data"
    task = SYNTHETIC_TASKS["nth_after_marker"].load()("nth_after_marker", "tiny")
    write_task(task, {TRAIN: BATCH * STEPS, VALIDATION: 16}, folder)
    return folder


def run_of(encoding: str, data: Path, folder: Path) -> dict[str, Any]:
    """Return the configuration for a run of the suite's size `tiny`, with fewer and smaller steps."""
    task = SYNTHETIC_TASKS["nth_after_marker"].load()("nth_after_marker", "tiny")
    raw = SIZES["tiny"].config(task, str(data), task.vocab_size)
    raw["model"]["encoding"] = encoding
    raw["training"] |= {"steps": STEPS, "global_batch_size": BATCH, "micro_batch_size": BATCH, "seed": 3}
    raw["evaluation"] = {"interval": STEPS, "samples": 16}
    raw["checkpoint"] = {"interval": STEPS}
    # In the suite's runs, warming up takes the first 20 steps or more.
    raw["schedule"]["warmup_fraction"] = 0.9
    raw["logging"] = {"interval": 1}
    raw["run"] = {"directory": str(folder / encoding)}
    return raw


def trace_of(encoding: str, data: Path, folder: Path) -> tuple[Config, Trace]:
    """Train with `pretrain`, and return configuration and trace."""
    raw = run_of(encoding, data, folder)
    file = folder / "trace.pt"
    payload = {"configs": [raw], "files": [str(file)], "compared_step": COMPARED_STEP}
    run_workers(TRACE, world_size=1, payload=payload, folder=folder / "workers")
    return parse_config(raw, "here"), read_trace(file)


def relative(ours: Tensor, theirs: Tensor, floor: float = 0.0) -> float:
    """Return the norm of the difference, divided by the second tensor's norm, or by `floor` if larger."""
    scale = max(float(theirs.norm()), floor, 1e-30)
    return float((ours - theirs).norm()) / scale


def is_without_gradient(name: str, theirs: Trace) -> bool:
    """Whether the gradient of a weight is zero but for rounding, such as that of the bias of FIRE's output layer.

    Adding a number to all scores of a query changes nothing. AdamW makes steps of a whole learning rate from such gradients.
    """
    gradient = theirs.gradients.get(name)
    return gradient is not None and float(gradient.norm()) < ROUNDING * theirs.norms[0]


def check_first_step(learner: Learner, theirs: Trace) -> None:
    """Compare initial weights, and the first step's loss and gradients."""
    parameters = dict(learner.model.named_parameters())
    for name, weights in theirs.initial.items():
        assert torch.equal(parameters[name], weights), name
    assert disagreement(learner) is None
    inputs = learner.read(0)
    learner.begin_step(inputs, inputs.batch)
    learner.compute_gradients()
    for name, gradient in theirs.gradients.items():
        ours = parameters[name].grad
        assert ours is not None
        difference = relative(ours, gradient, NEGLIGIBLE * theirs.norms[0])
        assert_within(difference, ONE_PROCESS_GRADIENTS, f"gradient of {name}")


def check_training(config: Config, theirs: Trace) -> None:
    """Train, comparing losses, weights and the validation loss with `pretrain`."""
    learner = Learner(config, open_run_data(config), CPU)
    check_first_step(learner, theirs)
    losses: list[float] = []
    norms: list[float] = []

    def compare(learner: Learner, step: int) -> None:
        losses.append(float(learner.loss))
        norms.append(float(learner.grad_norm))
        if step == COMPARED_STEP:
            for name, parameter in learner.model.named_parameters():
                if is_without_gradient(name, theirs):
                    continue
                difference = relative(parameter.detach(), theirs.weights[name])
                assert_within(difference, ONE_PROCESS_WEIGHTS, f"weights of {name}")

    (trained,) = train([learner], Called(), compare)
    assert isinstance(trained, TrainedModel)
    assert len(losses) == STEPS
    series = zip([*losses, trained.validation_loss], [*theirs.losses, theirs.validation_loss], strict=True)
    for ours, expected in series:
        assert_within(abs(ours - expected) / expected, ONE_PROCESS_LOSSES, "losses")
    # The norm has the gradients' relative error.
    assert norms[0] == pytest.approx(theirs.norms[0], rel=1e-5)


def test_trains_like_pretrain(data: Path, tmp_path: Path) -> None:
    """Notices other initial weights, samples, targets, positions, clipping, schedule, weight decay or a group's rate."""
    check_training(*trace_of("tape_fox", data, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_trains_like_pretrain(encoding: str, data: Path, tmp_path: Path) -> None:
    check_training(*trace_of(encoding, data, tmp_path))
