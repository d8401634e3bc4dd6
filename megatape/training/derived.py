"""Folders made of a run's checkpoints: a branch, which decays from one of them, and the average of several.

A branch is the same run until its checkpoint, in a folder of its own. An average is a checkpoint with the mean of the weights
of others, for which no step was made.
"""

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import Tensor

from megatape.checkpoint.compatibility import IMMUTABLE
from megatape.checkpoint.features import Feature
from megatape.checkpoint.manifest import MANIFEST, STATE, as_json, save_manifest, write_file
from megatape.checkpoint.reader import Average, CheckpointReader
from megatape.checkpoint.tensors import describe_base, save_tensors
from megatape.config import Config, differences, parse_config, save_config
from megatape.errors import UserError, path_errors
from megatape.optim.schedules import WsdOptions, step_learning_rate
from megatape.run_folder import RunFolder, read_metrics
from megatape.utils.files import link_file, new_folder, sync, write_atomically


@path_errors()
def branch(reader: CheckpointReader, decay_tokens: int, out: Path | None = None) -> Config:
    """Make the folder of a run that continues a checkpoint with a decay of the learning rate, and then ends.

    It has the checkpoint, by hard links where the file system has them, and the metrics until its step. So the run resumes
    there, and the ledger proves it, as if it had been configured so from the start.

    Args:
        reader: the checkpoint, verified.
        decay_tokens: length of the decay, which is rounded up to whole steps.
        out: the folder, which must not exist; by default beside the run's, named by the first and last step of the decay.

    Returns:
        The configuration of the new run.

    Raises:
        UserError: the learning rate after the checkpoint is not at its peak, the folder exists, or `out` is None and the run's
            folder is not there.
    """
    average = reader.state.get("average")
    origin = RunFolder(Path(average["run"] if average else Path(os.path.abspath(reader.directory)).parent.parent))
    if out is None and not origin.config.is_file():
        raise UserError(f"{reader.directory} is not in the folder of its run (no {origin.config}): give `out`")
    config = _decaying(reader, decay_tokens, origin.directory, out)
    folder = RunFolder(Path(config.run.directory))
    with new_folder(folder.directory) as directory:
        partial = RunFolder(directory)
        copied = partial.checkpoint(reader.step)
        copied.mkdir(parents=True)
        for file in (*reader.manifest["files"], MANIFEST):  # other files in the folder do not belong to the checkpoint
            link_file(reader.directory / file, copied / file)
        lines = [f"{line}\n" for step, line in read_metrics(origin.metrics).items() if step <= reader.step]
        write_atomically(partial.metrics, "".join(lines).encode())
        save_config(config, partial.config)
        sync(directory)
    folder.mark_latest(folder.checkpoint(reader.step))
    return config


def _decaying(reader: CheckpointReader, decay_tokens: int, origin: Path, out: Path | None) -> Config:
    """The configuration of the checkpoint's run, with a decay after it. All steps until then keep their learning rate."""
    config = reader.config
    step = reader.step
    peak = reader.config.optimizer.learning_rate
    batches = reader.config.batches
    fraction = config.schedule.in_fractions(config.tokens).warmup_fraction
    warmup = round(batches.consumed(config.training.steps) / batches.full * fraction) * batches.full  # samples
    first = batches.steps(warmup)
    least = min((step_learning_rate(config, one) for one in range(first, step + 1)), default=0.0)
    if least < peak:
        fault = f"step {step + 1:,} has {least / peak:.1%} of the peak" if step >= first else f"its warm-up has {first:,} steps"
        raise UserError(
            f"{reader.directory} is not in the stable part of its run: {fault}; choose a checkpoint at the peak, of a run with "
            "schedule.kind wsd or constant"
        )
    length = config.data.sequence_length
    begin = batches.consumed(step)
    steps = batches.steps(begin - (-decay_tokens // length))
    raw = config.model_dump()
    raw["schedule"] = {name: value for name, value in raw["schedule"].items() if name in WsdOptions.model_fields} | {
        "kind": "wsd",
        "decay_tokens": (batches.consumed(steps) - begin) * length,
        "warmup_fraction": 0.0,
        "warmup_tokens": warmup * length or None,
    }
    raw["training"]["steps"] = steps
    raw["run"]["directory"] = str(out or origin.with_name(f"{origin.name}-decay-{step + 1}-{steps}"))
    return parse_config(raw, f"the branch of {reader.directory}")


@path_errors()
def average(readers: Sequence[CheckpointReader], weighting: str, out: Path) -> Average:
    """Write the average of checkpoints into the new folder `out`.

    All but the weights is the newest one's: a run or a branch that continues from the average has its optimizer state, and the
    data after it. A moving average of weights (optimizer.ema_decay) begins again with the averaged ones.

    Args:
        readers: the checkpoints, verified; two at least.
        weighting: uniform, or linear: 1, 2, 3 and so on from the oldest to the newest.
        out: appears only when it is complete. Must not exist.

    Returns:
        What state.json says of the average.

    Raises:
        UserError: the checkpoints are not of one run and of different steps, or the folder exists.
    """
    readers = sorted(readers, key=lambda reader: reader.step)
    newest = readers[-1]
    for one, other in pairwise(readers):
        _check_pair(one, other)
    parts = range(1, len(readers) + 1) if weighting == "linear" else [1] * len(readers)
    made = Average(
        run=str(Path(os.path.abspath(newest.directory)).parent.parent),
        steps=[reader.step for reader in readers],
        shares=[part / sum(parts) for part in parts],
    )
    tensors = {kind: files for kind, files in newest.manifest["tensors"].items() if kind != "ema"}
    with new_folder(out) as folder:
        files = {}
        for file in dict.fromkeys(tensors["weight"].values()):
            held = [name for name, of_weight in tensors["weight"].items() if of_weight == file]
            files[file] = save_tensors({name: _mean(name, readers, made.shares) for name in held}, folder / file)
        left_out = {STATE, *files, *newest.manifest["tensors"].get("ema", {}).values()}
        for file in newest.manifest["files"].keys() - left_out:
            link_file(newest.directory / file, folder / file)
            files[file] = newest.manifest["files"][file]
        files[STATE] = write_file(folder / STATE, [as_json(newest.state | {"average": made.model_dump()})])
        base = describe_base(newest.base, out) if newest.base else None
        features = [Feature.AVERAGE]
        if newest.updates != newest.step:
            features.append(Feature.SKIPPED_STEPS)
        save_manifest(folder, files, tensors, base, features)
        sync(folder)
    return made


def _mean(name: str, readers: Sequence[CheckpointReader], shares: Sequence[float]) -> Tensor:
    """The weighted mean of a parameter, summed in float64 and rounded once."""
    total: Any = sum(share * reader.tensor(name).double() for reader, share in zip(readers, shares, strict=True))
    return total.float()


def _check_pair(one: CheckpointReader, other: CheckpointReader) -> None:
    """Raise UserError unless two checkpoints are of one run, or of branches of it, and of different steps."""
    reasons = [
        f"{field.path} is {field.theirs} and {field.ours}"
        for field in differences(one.config, other.config)
        if field.rule in IMMUTABLE
    ]
    for name in ("data", "tokenizer"):
        if one.state["fingerprints"].get(name) != other.state["fingerprints"].get(name):
            reasons.append(f"they were trained on another {name}")
    bases = [reader.base_record and (reader.base_record.tensors, reader.base_record.files) for reader in (one, other)]
    if bases[0] != bases[1]:
        reasons.append("their frozen weights are of another base")
    if set(one.names()) != set(other.names()):
        reasons.append("they have other weights")
    if one.step == other.step:
        reasons.append(f"both have step {one.step}")
    reasons += [f"{reader.directory} is an average already" for reader in (one, other) if "average" in reader.state]
    if reasons:
        raise UserError(
            f"{one.directory} and {other.directory} have no average: {'; '.join(reasons)}. Give checkpoints of different steps "
            "of one run"
        )
