"""Branch of a run: the same run until a checkpoint, then a decay of the learning rate, in a folder of its own."""

import os
from pathlib import Path

from megatape.checkpoint.manifest import MANIFEST
from megatape.checkpoint.reader import CheckpointReader
from megatape.config import Config, save_config, with_sections
from megatape.errors import UserError, path_errors
from megatape.optim.schedules import LearningRate, WsdOptions
from megatape.run_folder import RunFolder, read_metrics
from megatape.utils.atomic import new_folder, write_atomically
from megatape.utils.files import link_file, sync


@path_errors()
def branch(reader: CheckpointReader, decay_tokens: int, out: Path | None = None) -> Config:
    """Create the folder of a run that continues a checkpoint with a decay of the learning rate, and then ends.

    The folder has the checkpoint (as hard links, if the file system supports them) and the metrics until its step. So the run
    resumes there, and the ledger proves it, as if it had been configured with the decay from the start.

    Args:
        reader: Verified checkpoint.
        decay_tokens: Length of the decay, rounded up to whole steps.
        out: Folder to create. Must not exist. By default a folder next to the run's, named after the first and last step of
            the decay.

    Returns:
        The configuration of the new run.

    Raises:
        UserError: The learning rate after the checkpoint is not at its peak, the folder exists, or `out` is None and the run's
            folder is missing.
    """
    average = reader.state.average
    if average is not None:
        run_directory = Path(average.run)
    else:
        run_directory = Path(os.path.abspath(reader.directory)).parent.parent
    origin = RunFolder(run_directory)
    if out is None and not origin.config.is_file():
        raise UserError(f"{reader.directory} is not in the folder of its run (no {origin.config}): give `out`")

    config = _decaying(reader, decay_tokens, origin.directory, out)
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


def _decaying(reader: CheckpointReader, decay_tokens: int, origin: Path, out: Path | None) -> Config:
    """Return the configuration of a checkpoint's run with a decay after it. Earlier steps keep their learning rate.

    Args:
        reader: Verified checkpoint.
        decay_tokens: Length of the decay, rounded up to whole steps.
        origin: Folder of the checkpoint's run.
        out: Folder of the new run, or None for the default.

    Raises:
        UserError: The learning rate after the checkpoint is not at its peak.
    """
    config = reader.config
    batches = config.batches
    fraction = config.schedule.in_fractions(config.tokens).warmup_fraction
    num_batches = batches.consumed(config.training.steps) / batches.full
    warmup_samples = round(num_batches * fraction) * batches.full
    _check_at_peak(reader, batches.steps(warmup_samples))

    length = config.data.sequence_length
    first_sample = batches.consumed(reader.step)
    decay_samples = -(-decay_tokens // length)
    steps = batches.steps(first_sample + decay_samples)

    shared = {name: value for name, value in config.schedule.model_dump().items() if name in WsdOptions.model_fields}
    lengths = {
        "decay_tokens": (batches.consumed(steps) - first_sample) * length,
        "warmup_fraction": 0.0,
        "warmup_tokens": warmup_samples * length or None,
    }
    directory = out or origin.with_name(f"{origin.name}-decay-{reader.step + 1}-{steps}")
    return with_sections(
        config,
        f"the branch of {reader.directory}",
        schedule=WsdOptions.model_validate(shared | lengths | {"kind": "wsd"}),
        training=config.training.model_copy(update={"steps": steps}),
        run=config.run.model_copy(update={"directory": str(directory)}),
    )


def _check_at_peak(reader: CheckpointReader, warmup_steps: int) -> None:
    """Check that every step between warm-up and checkpoint, and the next one, has the peak learning rate.

    Args:
        reader: Verified checkpoint.
        warmup_steps: Number of warm-up steps.

    Raises:
        UserError: A step has a lower one.
    """
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
