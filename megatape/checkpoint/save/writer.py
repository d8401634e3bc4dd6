"""Writes checkpoints: ranks write files in parallel, and the checkpoint appears when all files are complete."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from megatape.checkpoint.format.features import Feature
from megatape.checkpoint.format.frozen_weights import base_record
from megatape.checkpoint.format.hashed_files import as_json, write_file
from megatape.checkpoint.format.manifest import RNG, STATE, save_manifest
from megatape.checkpoint.format.records import FileRecord
from megatape.checkpoint.format.tensors import save_tensors
from megatape.checkpoint.save.contents import CheckpointContents
from megatape.checkpoint.save.file_plan import TensorFile, plan_files
from megatape.checkpoint.save.partial_folder import hide, make_partial, partial_name
from megatape.checkpoint.save.tensor_writes import write_tensors
from megatape.data.tokenizers.tokenizer import check_file_name
from megatape.distributed.values.exchange import gather_values, on_all, on_main
from megatape.errors import PathError, TrainingDiverged, UserError, content_errors, flag, marked_message, path_error
from megatape.reliability.shared_folder import wait_until_visible
from megatape.run_environment import RunEnvironment
from megatape.utils.files.atomic import rename
from megatape.utils.files.files import sync
from megatape.utils.text.units import plural

# Errors that are raised on every rank, in training and in saves.
COLLECTIVE_ERRORS = (OSError, UserError)


class WrittenFiles(NamedTuple):
    """Files written by all ranks.

    Attributes:
        records: File name -> size and hash.
        not_finite: Tensors in these files that are not finite.
    """

    records: dict[str, FileRecord]
    not_finite: list[str]


def write_checkpoint(environment: RunEnvironment, contents: CheckpointContents) -> Path:
    """Write a checkpoint into the run directory. Collective over all ranks, using only the process group of its tensors.

    A rank holds one gathered tensor on its device and the content of one file in host memory. A failed save leaves nothing
    behind and removes no older checkpoint.

    Args:
        environment: Run environment.
        contents: Checkpoint contents.

    Returns:
        Checkpoint folder.

    Raises:
        TrainingDiverged: On every rank, a tensor is not finite.
        PathError: On every rank, one of them could not write.
        LeaseLost: On every rank, another run has taken the lease.
    """
    topology = environment.topology
    checkpoint = environment.folder.checkpoint(contents.state.step)
    try:
        _write(environment, contents, checkpoint)
    except (OSError, UserError) as error:
        if topology.is_main:
            # Free the space at once: the disk may be full.
            shutil.rmtree(partial_name(checkpoint, environment.lease), ignore_errors=True)
        if isinstance(error, OSError):
            raise path_error(error, f"checkpoint {checkpoint} could not be written: {marked_message(error)}") from error
        raise
    return checkpoint


def _write(environment: RunEnvironment, contents: CheckpointContents, checkpoint: Path) -> None:
    """Write a checkpoint's files, then its manifest, and give it its name. Raises the errors of `write_checkpoint`."""
    topology = environment.topology
    group = contents.tensors.group
    partial = on_main(lambda: make_partial(environment, checkpoint), topology, group)
    is_visible = wait_until_visible(partial)

    files = plan_files(contents.tensors, contents.left_out)
    writes = write_tensors(partial, files, contents.tensors, topology)
    rng_states = gather_values(contents.rng, topology, group)

    def finish_share() -> tuple[dict[str, Any], list[str]]:
        if not is_visible:
            raise PathError("the folder made by the main rank is not visible here")
        records = {name: future.result() for name, future in writes.records.items()}
        if topology.is_main:
            records |= _write_other_files(partial, contents, rng_states)
        # Ranks exchange JSON values.
        return {name: record.model_dump() for name, record in records.items()}, writes.not_finite

    # If a rank could not write its files, all ranks learn of it here: none waits for it, and no manifest lacks its files.
    shares = on_all(finish_share, topology, group)
    written = _join_shares(shares)
    _check_finite(written.not_finite, checkpoint)

    def complete() -> None:
        _write_manifest(partial, checkpoint, contents, files, written.records)
        _publish(partial, checkpoint, environment)

    on_main(complete, topology, group)


def _join_shares(shares: list[tuple[dict[str, Any], list[str]]]) -> WrittenFiles:
    """Join each rank's file records and tensors that are not finite."""
    written = WrittenFiles({}, [])
    for records, not_finite in shares:
        assert not written.records.keys() & records.keys(), "write_file creates each file once"
        for name, record in records.items():
            written.records[name] = FileRecord(**record)
        written.not_finite.extend(not_finite)
    return written


def _write_other_files(partial: Path, contents: CheckpointContents, rng_states: list[Tensor]) -> dict[str, FileRecord]:
    """Write the training state, the generator states by rank, and the tokenizer.

    Returns:
        File name -> size and hash.

    Raises:
        OSError: A file exists or cannot be written.
        UserError: A file name is not one of a tokenizer.
    """
    records = {}
    records[STATE] = write_file(partial / STATE, [as_json(contents.state.content(), STATE)])
    states_by_rank = {f"rank{rank}": state for rank, state in enumerate(rng_states)}
    records[RNG] = save_tensors(states_by_rank, partial / RNG)
    for name, content in contents.tokenizer.items():
        with content_errors(f"tokenizer file {name!r}", "remove it from the data directory"):
            check_file_name(name)
        records[name] = write_file(partial / name, [content])
    return records


def _check_finite(not_finite: list[str], checkpoint: Path) -> None:
    """Raise TrainingDiverged if there are tensors that are not finite."""
    if not not_finite:
        return
    tensors = not_finite[0]
    num_more = len(not_finite) - 1
    if num_more:
        tensors += f" and {plural(num_more, 'more tensor')}"
    raise TrainingDiverged(
        f"checkpoint {checkpoint} was not written: {tensors} would not be finite in it. Older checkpoints remain; lower "
        f"optimizer.learning_rate, check optimizer.eps, and continue with {flag('resume')} auto"
    )


def _write_manifest(
    partial: Path, checkpoint: Path, contents: CheckpointContents, files: list[TensorFile], records: dict[str, FileRecord]
) -> None:
    """Write the manifest into the partial folder, which has all other files."""
    file_of: dict[str, dict[str, str]] = {kind: {} for kind in contents.tensors.names_by_kind}
    for file in files:
        file_of[file.kind] |= dict.fromkeys(file.parameters, file.name)
    base = None
    if contents.base is not None:
        base = base_record(contents.base, checkpoint)
    features = []
    if contents.state.updates != contents.state.step:
        features.append(Feature.SKIPPED_STEPS)
    save_manifest(partial, records, file_of, base, features)
    sync(partial)


def _publish(partial: Path, checkpoint: Path, environment: RunEnvironment) -> None:
    """Give the complete partial folder the name of the checkpoint. Replace one with the same name, of an earlier try.

    Raises:
        LeaseLost: Another run has taken the lease.
    """
    # Gathering may have taken long enough to lose the lease.
    environment.lease.check()
    replaced = None
    if os.path.lexists(checkpoint):
        replaced = hide(checkpoint, environment.lease)
    rename(partial, checkpoint)
    sync(environment.folder.checkpoints)
    if replaced is not None:
        # The new checkpoint is complete, even if the old one cannot be removed.
        with suppress(OSError):
            shutil.rmtree(replaced)
