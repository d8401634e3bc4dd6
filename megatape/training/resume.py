"""The state of a run's folder at a start: a checkpoint that the run may continue, and records of steps made after it."""

import json

from megatape.checkpoint.place import RunPlace
from megatape.checkpoint.reader import CheckpointReader
from megatape.checkpoint.same_run import changed_settings, check_annealing, check_end_token, check_same_run
from megatape.config import Config
from megatape.data.training.splits import RunData
from megatape.run_folder import read_metrics
from megatape.training.ledger import check_order
from megatape.training.step import NUMBERS, StepMetrics


def check_continues(
    reader: CheckpointReader, config: Config, data: RunData, attention: str, allow_changes: bool, place: RunPlace
) -> None:
    """Check that a run may continue from a checkpoint, and report it with each change of the recipe. Collective.

    Args:
        reader: the checkpoint.
        config: of the run.
        data: of the run.
        attention: backend of the run.
        allow_changes: let the run change what same_run.NEEDS_CONFIRMATION names.
        place: of the run.

    Raises:
        UserError: it would train another model, see other samples or change what needs confirmation.
    """
    origin, theirs = reader.directory, reader.config
    check_same_run(origin, theirs, reader.state["fingerprints"], config, data.fingerprints)
    check_end_token(origin, reader.tokenizer(), data.tokenizer)
    place.on_main(lambda: check_order(origin, reader.state, data.train.order))
    check_annealing(origin, theirs, config, reader.tokens)
    changed = changed_settings(origin, theirs, config, allow_changes)
    before = reader.state.get("attention", attention)  # older checkpoints do not tell
    if before != attention:
        changed.append(f"attention by {before} -> {attention}, which rounds differently")
    place.log.say(f"resumed from {origin}: {reader.samples:,} samples and {reader.tokens:,} tokens seen")
    for line in changed:
        place.log.say(f"changed since then: {line}")


def restart(place: RunPlace) -> None:
    """Let a run with --resume auto and without checkpoints start from step 0. Collective.

    Raises UserError if a checkpoint may have been lost.
    """
    if recorded := place.on_main(place.folder.check_restart):
        kept = place.on_main(lambda: str(place.folder.set_metrics_aside()))
        place.log.say(
            f"no checkpoint was written before the run ended after step {recorded}: starting again from step 0; its metrics "
            f"are kept in {kept}"
        )


def recorded_steps(place: RunPlace) -> dict[int, str]:
    """The lines of metrics.jsonl, by step; none if it cannot be read."""
    recorded: dict[int, str] = {}
    place.log.attempt(lambda: recorded.update(read_metrics(place.folder.metrics)))
    return recorded


def unevaluated_step(place: RunPlace, step: int) -> StepMetrics | None:
    """The metrics of `step`, if they were recorded without a validation: a stop kept it from its evaluation. Collective."""
    record = json.loads(place.on_main(lambda: recorded_steps(place).get(step, "{}")))
    return StepMetrics.parse(record) if record.keys() >= set(NUMBERS) and "validation_loss" not in record else None
