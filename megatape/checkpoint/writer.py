"""Writer of checkpoints: ranks write files in parallel, and the checkpoint appears when all files are complete."""

import os
import shutil
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from megatape.checkpoint.base import base_record
from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.features import Feature
from megatape.checkpoint.hashed_files import as_json, write_file
from megatape.checkpoint.manifest import RNG, STATE, save_manifest
from megatape.checkpoint.partial_folder import hide, make_partial, partial_name
from megatape.checkpoint.records import FileRecord
from megatape.checkpoint.state import State
from megatape.checkpoint.tensors import StoredWeights, save_tensors
from megatape.data.tokenizers.tokenizer import check_file_name
from megatape.distributed.exchange import gather_values, on_all, on_main
from megatape.distributed.topology import Topology
from megatape.errors import PathError, TrainingDiverged, UserError, content_errors, path_error
from megatape.reliability.shared_folder import wait_until_visible
from megatape.utils.atomic import rename
from megatape.utils.files import sync
from megatape.utils.units import plural
from megatape.zero.tensors import TensorSource

# Approximate size of a file of tensors, and of a rank's buffer.
FILE_BYTES = 2**30
BYTES_PER_ELEMENT = 4
# Errors that are raised on every rank, in training and in saves.
COLLECTIVE_ERRORS = (OSError, UserError)


class TensorFile(NamedTuple):
    """File of tensors in a checkpoint.

    Attributes:
        kind: Kind of the tensors.
        name: Name of the file.
        parameters: Names of the parameters.
    """

    kind: str
    name: str
    parameters: list[str]


@dataclass(frozen=True)
class CheckpointContents:
    """Contents of a checkpoint.

    Attributes:
        state: Content of state.json.
        tensors: Master weights and optimizer state.
        rng: State of this rank's generators (checkpoint/rng.py).
        tokenizer: Name -> content of the tokenizer's files.
        base: Frozen weights to leave out, None to write all weights.
    """

    state: State
    tensors: TensorSource
    rng: Tensor
    tokenizer: Mapping[str, bytes]
    base: StoredWeights | None = None


def write_checkpoint(environment: RunEnvironment, contents: CheckpointContents) -> Path:
    """Write a checkpoint into the run's folder. Collective over all ranks, only by the process group of `contents.tensors`.

    A rank holds one gathered tensor on its device and the content of one file in host memory. If the save fails, nothing of the
    checkpoint is left, and no older checkpoint is removed.

    Args:
        environment: Environment of the run.
        contents: Contents of the checkpoint.

    Returns:
        The checkpoint.

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
            raise path_error(error, f"checkpoint {checkpoint} could not be written: {error}") from error
        raise
    return checkpoint


def _write(environment: RunEnvironment, contents: CheckpointContents, checkpoint: Path) -> None:
    """Write the files of a checkpoint, then its manifest, and give it its name. Raises as `write_checkpoint`."""
    topology = environment.topology
    group = contents.tensors.group
    partial = on_main(lambda: make_partial(environment, checkpoint), topology, group)
    is_visible = wait_until_visible(partial)

    left_out: Collection[str] = ()
    if contents.base is not None:
        left_out = contents.base.tensors
    files = plan_files(contents.tensors, left_out)
    writing, not_finite = _write_tensors(partial, files, contents.tensors, topology)
    rng_states = gather_values(contents.rng, topology, group)

    def finish_share() -> tuple[dict[str, Any], list[str]]:
        if not is_visible:
            raise PathError("what the main rank made is not seen here")
        records = {name: future.result() for name, future in writing.items()}
        if topology.is_main:
            records |= _write_rest(partial, contents, rng_states)
        # Ranks exchange JSON values.
        return {name: record.model_dump() for name, record in records.items()}, not_finite

    # If a rank could not write its files, all ranks learn of it here: none waits for it, and no manifest lacks its files.
    shares = on_all(finish_share, topology, group)
    written: dict[str, FileRecord] = {}
    all_not_finite: list[str] = []
    for records, share_not_finite in shares:
        assert not written.keys() & records.keys(), "write_file creates each file once"
        for name, record in records.items():
            written[name] = FileRecord(**record)
        all_not_finite += share_not_finite
    _check_finite(all_not_finite, checkpoint)
    on_main(lambda: _complete(partial, checkpoint, environment, files, written, contents), topology, group)


def plan_files(tensors: TensorSource, left_out: Collection[str], file_bytes: int = FILE_BYTES) -> list[TensorFile]:
    """Divide tensors into files. All kinds of tensors are divided in the same way.

    Args:
        tensors: Tensors to write.
        left_out: Parameters to leave out.
        file_bytes: Maximum size of a file with several tensors.
    """
    groups: list[list[str]] = []
    free_bytes = 0
    for name in tensors.parameters:
        if name in left_out:
            continue
        size = BYTES_PER_ELEMENT * torch.Size(tensors.shape(name)).numel()
        if size > free_bytes:
            groups.append([])
            free_bytes = file_bytes
        groups[-1].append(name)
        free_bytes -= size

    files = []
    for number, group in enumerate(groups):
        for kind, names in tensors.names_by_kind.items():
            present = [name for name in group if name in names]
            if present:
                files.append(TensorFile(kind, f"{kind}-{number:05d}.safetensors", present))
    return files


def _write_tensors(
    partial: Path, files: list[TensorFile], tensors: TensorSource, topology: Topology
) -> tuple[dict[str, Future[FileRecord]], list[str]]:
    """Gather and write tensors. Each file is written by one rank, while the next one is gathered. Collective.

    Returns:
        Name -> result of this rank's files, which are written or have failed, and the tensors in them that are not finite.
    """
    writing: dict[str, Future[FileRecord]] = {}
    not_finite: list[str] = []
    with ThreadPoolExecutor(max_workers=1) as pool:
        for number, file in enumerate(files):
            owner = number % topology.world_size
            is_owner = topology.rank == owner
            if is_owner:
                # Hold one file in memory: finish the last one before gathering the next.
                wait(writing.values())

            gathered: dict[str, Tensor] = {}
            for name in file.parameters:
                tensor = tensors.gather(name, file.kind, owner)
                if tensor is None:
                    continue
                gathered[name] = tensor.cpu()
                if not torch.isfinite(tensor).all():
                    not_finite.append(f"{file.kind} of {name}")
            if is_owner:
                writing[file.name] = pool.submit(save_tensors, gathered, partial / file.name)
    return writing, not_finite


def _write_rest(partial: Path, contents: CheckpointContents, rng_states: list[Tensor]) -> dict[str, FileRecord]:
    """Write the training state, the generators' states by rank, and the tokenizer.

    Returns:
        Name -> size and hash of the files.

    Raises:
        OSError: A file cannot be written, or exists.
        UserError: A file name is not one of a tokenizer.
    """
    records = {}
    records[STATE] = write_file(partial / STATE, [as_json(contents.state.content(), STATE)])
    records[RNG] = save_tensors({f"rank{rank}": state for rank, state in enumerate(rng_states)}, partial / RNG)
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
        "optimizer.learning_rate, check optimizer.eps, and continue with --resume auto"
    )


def _complete(
    partial: Path,
    checkpoint: Path,
    environment: RunEnvironment,
    files: list[TensorFile],
    written: dict[str, FileRecord],
    contents: CheckpointContents,
) -> None:
    """Write the manifest and give the checkpoint its name.

    Args:
        partial: Partial folder with all files.
        checkpoint: Final folder.
        environment: Environment of the run.
        files: Files of tensors.
        written: Name -> size and hash of all files.
        contents: Contents of the checkpoint.
    """
    file_of: dict[str, dict[str, str]] = {kind: {} for kind in contents.tensors.names_by_kind}
    for file in files:
        file_of[file.kind] |= dict.fromkeys(file.parameters, file.name)
    base = None
    if contents.base is not None:
        base = base_record(contents.base, checkpoint)
    features = []
    if contents.state.updates != contents.state.step:
        features.append(Feature.SKIPPED_STEPS)
    save_manifest(partial, written, file_of, base, features)
    sync(partial)

    # Gathering may have taken long.
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
