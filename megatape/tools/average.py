"""Averages checkpoints: a new checkpoint with the mean of their weights."""

import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import Tensor

from megatape.checkpoint.format.features import Feature
from megatape.checkpoint.format.frozen_weights import base_record
from megatape.checkpoint.format.hashed_files import as_json, write_file
from megatape.checkpoint.format.manifest import STATE, save_manifest
from megatape.checkpoint.format.records import FileRecord
from megatape.checkpoint.format.state import Average
from megatape.checkpoint.format.tensors import save_tensors
from megatape.checkpoint.load.compatibility import IMMUTABLE
from megatape.checkpoint.load.reader import CheckpointReader
from megatape.config import differences
from megatape.errors import UserError, path_errors
from megatape.utils.files.atomic import new_folder
from megatape.utils.files.files import link_file, sync
from megatape.zero.state.kinds import EMA, WEIGHT


@path_errors()
def average(readers: Sequence[CheckpointReader], weighting: str, out: Path) -> Average:
    """Write the average of checkpoints into a new folder.

    Everything but the weights comes from the newest checkpoint, so a run or branch continuing from the average has its
    optimizer state and the data after it. A moving average of weights (optimizer.ema_decay) starts again from the averaged
    weights.

    Args:
        readers: Verified checkpoints, at least two.
        weighting: "uniform", or "linear": 1, 2, 3 and so on from oldest to newest.
        out: Folder to create. It must not exist, and only appears when complete.

    Returns:
        The average's entry in state.json.

    Raises:
        UserError: The checkpoints are not from different steps of one run, or the folder exists.
    """
    readers = sorted(readers, key=lambda reader: reader.step)
    newest = readers[-1]
    for one, other in pairwise(readers):
        _check_pair(one, other)

    parts = [1] * len(readers)
    if weighting == "linear":
        parts = list(range(1, len(readers) + 1))
    entry = Average(
        run=str(Path(os.path.abspath(newest.directory)).parent.parent),
        steps=[reader.step for reader in readers],
        shares=[part / sum(parts) for part in parts],
    )

    tensors = {kind: file_of_tensor for kind, file_of_tensor in newest.manifest.tensors.items() if kind != EMA}
    base = None
    if newest.base:
        base = base_record(newest.base, out)
    features = [Feature.AVERAGE]
    if newest.updates != newest.step:
        features.append(Feature.SKIPPED_STEPS)

    with new_folder(out) as folder:
        files = _write_weights(readers, entry.shares, folder)
        files |= _link_others(newest, files, folder)
        state = newest.state.model_copy(update={"average": entry})
        files[STATE] = write_file(folder / STATE, [as_json(state.content())])
        save_manifest(folder, files, tensors, base, features)
        sync(folder)
    return entry


def _write_weights(readers: Sequence[CheckpointReader], shares: Sequence[float], folder: Path) -> dict[str, FileRecord]:
    """Write the averaged weights, divided into files as in the newest checkpoint. Returns their records by file name."""
    file_of_weight = readers[-1].manifest.tensors[WEIGHT]
    records = {}
    for file in dict.fromkeys(file_of_weight.values()):
        names = [name for name, file_of_name in file_of_weight.items() if file_of_name == file]
        means = {name: _mean(name, readers, shares) for name in names}
        records[file] = save_tensors(means, folder / file)
    return records


def _link_others(newest: CheckpointReader, written: Iterable[str], folder: Path) -> dict[str, FileRecord]:
    """Link the newest checkpoint's other files, except for its state and its moving average. Returns their records."""
    replaced = {STATE, *written, *newest.manifest.tensors.get(EMA, {}).values()}
    records = {}
    for file in newest.manifest.files.keys() - replaced:
        link_file(newest.directory / file, folder / file)
        records[file] = newest.manifest.files[file]
    return records


def _mean(name: str, readers: Sequence[CheckpointReader], shares: Sequence[float]) -> Tensor:
    """Return a parameter's weighted mean, summed in float64 and rounded once."""
    total: Any = sum(share * reader.tensor(name).double() for reader, share in zip(readers, shares, strict=True))
    return total.float()


def _check_pair(one: CheckpointReader, other: CheckpointReader) -> None:
    """Raise a UserError with every reason why two checkpoints are not from different steps of one run or its branches."""
    reasons = []
    for field in differences(one.config, other.config):
        if field.rule in IMMUTABLE:
            reasons.append(f"{field.path} is {field.theirs} and {field.ours}")
    for name in ("data", "tokenizer"):
        if one.state.fingerprints.get(name) != other.state.fingerprints.get(name):
            reasons.append(f"they were trained on another {name}")
    if _base_hashes(one) != _base_hashes(other):
        reasons.append("their frozen weights are of another base")
    if set(one.names()) != set(other.names()):
        reasons.append("they have other weights")
    if one.step == other.step:
        reasons.append(f"both have step {one.step}")
    for reader in (one, other):
        if reader.state.average is not None:
            reasons.append(f"{reader.directory} is an average already")
    if reasons:
        raise UserError(
            f"{one.directory} and {other.directory} have no average: {'; '.join(reasons)}. Give checkpoints of different steps "
            "of one run"
        )


def _base_hashes(reader: CheckpointReader) -> Any:
    """Return the hashes of a checkpoint's base model, None without one."""
    record = reader.manifest.base
    if not record:
        return None
    return record.tensors, record.files
