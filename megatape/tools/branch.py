"""Branches of a run: the same run up to a checkpoint, then a learning-rate decay, in a separate run directory."""

import os
from pathlib import Path

from megatape.checkpoint.format.manifest import MANIFEST
from megatape.checkpoint.load.reader import CheckpointReader
from megatape.config import Config, save_config, with_sections
from megatape.errors import UserError, flag, path_errors
from megatape.optim.learning_rate import LearningRate
from megatape.optim.schedules import WsdOptions
from megatape.run_folder import RunFolder, read_metrics
from megatape.utils.files.atomic import new_folder, write_atomically
from megatape.utils.files.files import link_file, sync
from megatape.utils.values.rounding import divide_up


@path_errors()
def branch(reader: CheckpointReader, decay_tokens: int, output: Path | None = None) -> Config:
    """Create the run directory of a branch: it continues a checkpoint with a learning-rate decay, and then ends.

    The directory has the checkpoint (as hard links, if the file system supports them) and the metrics up to its step. So the
    branch resumes there, and the ledger proves it, as if the run had been configured with the decay from the start.

    Args:
        reader: Verified checkpoint.
        decay_tokens: Length of the decay, rounded up to whole steps.
        output: Run directory to create. It must not exist. By default it lies next to the run's, named after the first and last
            step of the decay.

    Returns:
        Configuration of the branch.

    Raises:
        UserError: The learning rate after the checkpoint is not at its peak, the directory exists, or `output` is None and the
            run directory is missing.
    """
    average = reader.state.average
    if average is not None:
        run_directory = Path(average.run)
    else:
        run_directory = Path(os.path.abspath(reader.directory)).parent.parent
    origin = RunFolder(run_directory)
    if output is None and not origin.config.is_file():
        raise UserError(f"{reader.directory} is not in the folder of its run (no {origin.config}): give {flag('output')}")

    config = _decaying(reader, decay_tokens, origin.directory, output)
    folder = RunFolder(Path(config.run.directory))
    with new_folder(folder.directory) as directory:
        partial = RunFolder(directory)
        checkpoint = partial.checkpoint(reader.step)
        checkpoint.mkdir(parents=True)
        # Other files in the folder do not belong to the checkpoint.
        for file in (*reader.manifest.files, MANIFEST):
            link_file(reader.directory / file, checkpoint / file)
        lines = [f"{line}\n" for step, line in read_metrics(origin.metrics).items() if step <= reader.step]
        write_atomically(partial.metrics, "".join(lines).encode())
        save_config(config, partial.config)
        sync(directory)
    folder.mark_latest(folder.checkpoint(reader.step))
    return config


def _decaying(reader: CheckpointReader, decay_tokens: int, origin: Path, output: Path | None) -> Config:
    """Return the configuration of the branch. Steps before the checkpoint keep their learning rate."""
    config = reader.config
    batches = config.batches
    fraction = config.schedule.in_fractions(config.tokens).warmup_fraction
    num_batches = batches.consumed(config.training.steps) / batches.full
    warmup_samples = round(num_batches * fraction) * batches.full
    _check_at_peak(reader, batches.steps(warmup_samples))

    length = config.data.sequence_length
    first_sample = batches.consumed(reader.step)
    decay_samples = divide_up(decay_tokens, length)
    steps = batches.steps(first_sample + decay_samples)

    shared = {}
    for name, value in config.schedule.model_dump().items():
        if name in WsdOptions.model_fields:
            shared[name] = value
    lengths = {
        "decay_tokens": (batches.consumed(steps) - first_sample) * length,
        "warmup_fraction": 0.0,
        "warmup_tokens": warmup_samples * length or None,
    }
    directory = output or origin.with_name(f"{origin.name}-decay-{reader.step + 1}-{steps}")
    return with_sections(
        config,
        f"the branch of {reader.directory}",
        schedule=WsdOptions.model_validate(shared | lengths | {"kind": "wsd"}),
        training=config.training.model_copy(update={"steps": steps}),
        run=config.run.model_copy(update={"directory": str(directory)}),
    )


def _check_at_peak(reader: CheckpointReader, warmup_steps: int) -> None:
    """Raise a UserError unless the learning rate stays at its peak from the warm-up to the step after the checkpoint."""
    step = reader.step
    config = reader.config
    peak = config.optimizer.learning_rate
    learning_rate = LearningRate.of_run(config)
    rates = [learning_rate.of_step(number) for number in range(warmup_steps, step + 1)]
    lowest = min(rates, default=0.0)
    if lowest >= peak:
        return
    reason = f"its warm-up has {warmup_steps:,} steps"
    if rates:
        reason = f"step {step + 1:,} has {lowest / peak:.1%} of the peak"
    raise UserError(
        f"{reader.directory} is not in the stable part of its run: {reason}; choose a checkpoint at the peak, of a run with "
        "schedule.kind wsd or constant"
    )
