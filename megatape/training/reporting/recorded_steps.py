"""Reading the steps recorded in metrics.jsonl by an earlier process."""

import json

from megatape.run_environment import RunEnvironment
from megatape.run_folder import read_metrics
from megatape.training.reporting.step_metrics import NUMBERS, StepMetrics


def recorded_steps(environment: RunEnvironment) -> dict[int, str]:
    """Read metrics.jsonl: step -> line. Empty if it cannot be read."""
    recorded: dict[int, str] = {}

    def read() -> None:
        recorded.update(read_metrics(environment.folder.metrics))

    environment.log.attempt(read, "recorded metrics could not be read")
    return recorded


def unevaluated_step(environment: RunEnvironment, step: int) -> StepMetrics | None:
    """Return the recorded metrics of a step if a stop prevented its evaluation, else None. Collective."""
    line = environment.on_main(lambda: recorded_steps(environment).get(step, "{}"))
    record = json.loads(line)
    if "validation_loss" in record or not record.keys() >= set(NUMBERS):
        return None
    return StepMetrics.parse(record)
