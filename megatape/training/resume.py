"""What a run that starts finds in its folder: a checkpoint that it may continue, and records of steps made after it."""

import json
from typing import Any

from megatape.checkpoint.reader import CheckpointReader
from megatape.checkpoint.same_run import changed_settings, check_annealing, check_end_token, check_same_run
from megatape.config import Config
from megatape.data.training.splits import RunData
from megatape.files import retry_transient_errors
from megatape.run_folder import RunFolder, read_metrics
from megatape.runtime.exchange import on_main
from megatape.runtime.run_log import RunLog
from megatape.runtime.topology import Topology
from megatape.training.ledger import check_order
from megatape.training.step import NUMBERS, StepMetrics


def check_continues(
    reader: CheckpointReader, config: Config, data: RunData, topology: Topology, attention: str, allow_changes: bool
) -> list[str]:
    """Check that a run may continue from a checkpoint. Collective.

    Args:
        reader: the checkpoint.
        config: of the run.
        data: of the run.
        topology: all ranks.
        attention: backend of the run.
        allow_changes: let the run change what same_run.NEEDS_CONFIRMATION names.

    Returns:
        A line for each change of the recipe.

    Raises:
        UserError: it would train another model, see other samples or change what needs confirmation.
    """
    origin, theirs = reader.directory, reader.config
    check_same_run(origin, theirs, reader.state["fingerprints"], config, data.fingerprints)
    check_end_token(origin, reader.tokenizer(), data.tokenizer)
    on_main(lambda: check_order(origin, reader.state, data.train.order), topology)
    check_annealing(origin, theirs, config, reader.tokens)
    changed = changed_settings(origin, theirs, config, allow_changes)
    before = reader.state.get("attention", attention)  # older checkpoints do not tell
    if before != attention:
        changed.append(f"attention by {before} -> {attention}, which rounds differently")
    return changed


def restart(folder: RunFolder, log: RunLog, topology: Topology) -> None:
    """Let a run with --resume auto and without checkpoints start from step 0. Collective.

    Raises UserError if a checkpoint may have been lost.
    """

    def set_aside() -> None:
        if recorded := retry_transient_errors(folder.check_restart):
            log.say(
                f"no checkpoint was written before the run ended after step {recorded}: starting again from step 0; its "
                f"metrics are kept in {folder.set_metrics_aside()}"
            )

    on_main(set_aside, topology)


def repeated_steps(folder: RunFolder, log: RunLog, step: int) -> str:
    """Which recorded steps are made again when the run continues after `step`, in words, or ""."""
    recorded: dict[int, str] = {}
    log.attempt(lambda: recorded.update(read_metrics(folder.metrics)))
    last = max(recorded, default=0)
    return f"steps {step + 1} to {last} are made again" if last > step else ""


def unevaluated_step(folder: RunFolder, log: RunLog, step: int, topology: Topology) -> StepMetrics | None:
    """The metrics of `step`, if they were recorded without a validation: a stop kept it from its evaluation. Collective."""

    def find() -> dict[str, Any]:
        record: dict[str, Any] = {}
        log.attempt(lambda: record.update(json.loads(read_metrics(folder.metrics).get(step, "{}"))))
        return record

    record = on_main(find, topology)
    return StepMetrics.parse(record) if record.keys() >= set(NUMBERS) and "validation_loss" not in record else None
