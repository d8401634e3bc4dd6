"""Resuming: finding and checking the checkpoint to continue from, or starting again if none was saved."""

from collections.abc import Callable
from pathlib import Path

from megatape.checkpoint.load.compatibility import (
    check_annealing,
    check_end_token,
    check_order,
    check_same_data,
    check_same_settings,
    recipe_changes,
)
from megatape.checkpoint.load.fresh_start import check_restart, set_metrics_aside
from megatape.checkpoint.load.reader import CheckpointReader
from megatape.checkpoint.load.selection import find_newest, open_named
from megatape.config import Config, differences
from megatape.data.training.run_data import RunData
from megatape.data.training.selection import NEW_SELECTION
from megatape.run_environment import RunEnvironment
from megatape.utils.text.units import plural


def check_continues(
    config: Config,
    data: RunData,
    attention: str,
    allow_changes: bool,
    environment: RunEnvironment,
    reader: CheckpointReader,
) -> None:
    """Check that a run may continue from a checkpoint, and report it with each changed setting. Collective.

    Args:
        config: Configuration.
        data: Data, opened by this rank.
        attention: Attention backend.
        allow_changes: Whether settings that must be confirmed may change (`confirmed` in docs/config.md).
        environment: Run environment.
        reader: Reader of the checkpoint.

    Raises:
        UserError: The run would train another model, see other samples, or change a setting that must be confirmed.
    """
    origin = reader.directory
    theirs = reader.config
    state = reader.state
    changed = list(differences(theirs, config))
    check_same_settings(origin, changed)
    check_same_data(origin, state.fingerprints, data.fingerprints, config.data)
    check_end_token(origin, reader.tokenizer(), data.tokenizer)
    environment.on_main(lambda: check_order(origin, state.last_step, data.train.order))
    check_annealing(origin, theirs.data.annealing, config.data.annealing, reader.tokens)
    lines = recipe_changes(origin, changed, allow_changes)
    # Earlier versions did not record the backend.
    before = state.attention or attention
    if before != attention:
        lines.append(f"attention by {before} -> {attention}, which rounds differently")

    samples = plural(reader.samples, "sample")
    tokens = plural(reader.tokens, "token")
    environment.log.info(f"resumed from {origin}: {samples} and {tokens} seen")
    if state.average is not None:
        steps = ", ".join(str(step) for step in state.average.steps)
        environment.log.info(f"its weights are the average of those after steps {steps}")
    if state.validation_selection != NEW_SELECTION:
        environment.log.info(
            "the run is still evaluated on the first evaluation.samples validation samples, as it began; new runs are "
            "evaluated on samples from the whole split"
        )
    for line in lines:
        environment.log.info(f"changed since then: {line}")


def resumed_checkpoint(
    checkpoint: Path | None, environment: RunEnvironment, check: Callable[[CheckpointReader], None]
) -> CheckpointReader | None:
    """Return the checkpoint to continue from, or None to start again because none was saved. Collective.

    Args:
        checkpoint: Checkpoint's folder, or None for the run's newest valid one.
        environment: Run environment.
        check: Raises UserError if the run must not continue from a checkpoint.

    Raises:
        UserError: The run must not continue, or a checkpoint may have been lost.
    """
    if checkpoint is not None:
        return open_named(checkpoint, environment, check)
    reader = find_newest(environment, check)
    if reader is None:
        _start_again(environment)
    return reader


def _start_again(environment: RunEnvironment) -> None:
    """Let a run with --resume auto and without checkpoints start from step 0. Collective.

    Raises:
        UserError: A checkpoint may have been lost.
    """
    num_recorded = environment.on_main(lambda: check_restart(environment.folder))
    if num_recorded == 0:
        return
    backup = environment.on_main(lambda: str(set_metrics_aside(environment.folder)))
    environment.log.info(
        f"no checkpoint was written before the run ended after step {num_recorded}: starting again from step 0; its metrics "
        f"are kept in {backup}"
    )
