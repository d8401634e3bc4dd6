"""Training of some runs together, step by step."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from megatape.config import Config
from megatape.data.training.batches.batch import Batch
from megatape.errors import TrainingDiverged
from megatape.lab.study.execution.one_process.learner import Learner
from megatape.lab.study.execution.one_process.step_graph import StepGraph
from megatape.model.transformer import Transformer

# Steps between checks whether runs have diverged. Each check waits for a GPU.
CHECK_INTERVAL = 50

# Called with a learner and the number of finished steps.
Report = Callable[[Learner, int], None]


@dataclass(frozen=True)
class TrainedModel:
    """A model in memory after its last step.

    Attributes:
        model: The model, on its device.
        config: Configuration of its run.
        fingerprints: Hashes of data and tokenizer.
        validation_loss: Mean loss on the validation samples in nats.
        seconds: Seconds of training. Runs trained together share their time equally.
    """

    model: Transformer
    config: Config
    fingerprints: dict[str, str]
    validation_loss: float
    seconds: float


# Result of a run's training, or the reason why it diverged.
Outcome = TrainedModel | TrainingDiverged


def train(learners: Sequence[Learner], graph: StepGraph, report: Report) -> list[Outcome]:
    """Train runs together from their first step to their last one.

    Args:
        learners: Runs with equal numbers of steps, at their initial weights.
        graph: Repeats the step of all runs.
        report: Called with each run every `logging.interval` steps.

    Returns:
        The outcome of each run.

    Raises:
        DataError: Samples cannot be read.
    """
    (num_steps,) = {learner.config.training.steps for learner in learners}
    started = time.perf_counter()
    held: list[Batch | None] = [None] * len(learners)
    step_of_all = partial(_compute_all, learners)
    for step in range(num_steps):
        for index, learner in enumerate(learners):
            inputs = learner.read(step)
            batch = graph.hold(held[index], inputs.batch)
            held[index] = batch
            learner.begin_step(inputs, batch)
        graph.run(step_of_all)
        done = step + 1
        for learner in learners:
            if done % learner.config.logging.interval == 0 or done == num_steps:
                report(learner, done)
        if done % CHECK_INTERVAL == 0 and all(_has_diverged(learner) for learner in learners):
            break
    outcomes = []
    for learner in learners:
        outcomes.append(_outcome(learner, (time.perf_counter() - started) / len(learners)))
    return outcomes


def _compute_all(learners: Sequence[Learner]) -> None:
    for learner in learners:
        learner.compute()


def _has_diverged(learner: Learner) -> bool:
    """Whether too many consecutive steps were skipped."""
    return float(learner.longest_skip) > learner.config.training.max_skipped_steps


def _outcome(learner: Learner, seconds: float) -> Outcome:
    """Return the outcome of a run after its last step."""
    if _has_diverged(learner):
        allowed = learner.config.training.max_skipped_steps
        return TrainingDiverged(
            f"loss or gradient norm were not finite in more than {allowed} steps in a row (training.max_skipped_steps): lower "
            "optimizer.learning_rate"
        )
    started = time.perf_counter()
    loss = learner.validation_loss()
    if not math.isfinite(loss):
        return TrainingDiverged(f"the validation loss is {loss}: the weights have diverged: lower optimizer.learning_rate")
    seconds += time.perf_counter() - started
    return TrainedModel(learner.model, learner.config, learner.data.fingerprints, loss, seconds)
