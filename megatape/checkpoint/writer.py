"""Writing a checkpoint from all ranks: each file by one of them, in parallel, and nothing visible until all of it is there."""

import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.checkpoint.base import describe_base
from megatape.checkpoint.manifest import (
    RNG,
    STATE,
    as_json,
    load_manifest,
    save_manifest,
    write_file,
)
from megatape.checkpoint.tensors import save_tensors
from megatape.checkpoint.weights import StoredWeights
from megatape.errors import LeaseLost, PathError, TrainingDiverged, path_error
from megatape.files import sync
from megatape.run_folder import REWOUND, RunFolder, named_step
from megatape.runtime.exchange import device_of, on_all, on_main
from megatape.runtime.holder import NONCE_DIGITS
from megatape.runtime.lease import Lease
from megatape.runtime.shared_folder import wait_until_visible
from megatape.runtime.topology import Topology
from megatape.zero.snapshot import Snapshot
from megatape.zero.state import ZeroState

PARTIAL = ".tmp"  # suffix of a folder that is not complete
STALE_SECONDS = 3600.0  # seconds without a change after which a partial folder is no longer being written
FILE_BYTES = 2**30  # tensors of one kind are grouped into files of about this size: a rank's buffer


@dataclass(frozen=True)
class RunPlace:
    """Where a run keeps its checkpoints, and which ranks write them.

    Attributes:
        folder: the run's folder.
        lease: of the folder; partial checkpoints are named after it.
        topology: all ranks.
    """

    folder: RunFolder
    lease: Lease
    topology: Topology


@dataclass(frozen=True)
class Contents:
    """What a checkpoint holds.

    Attributes:
        state: JSON object for state.json, with `step` and `updates`.
        zero: master weights and optimizer state.
        rng: this rank's generators (rng_snapshot).
        tokenizer: content of its files, by name.
        base: frozen weights that stay where they are, and are left out.
    """

    state: dict[str, Any]
    zero: ZeroState | Snapshot
    rng: Tensor
    tokenizer: Mapping[str, bytes]
    base: StoredWeights | None = None


def write_checkpoint(place: RunPlace, contents: Contents) -> Path:
    """Write a checkpoint into the run's folder. Collective over all ranks, by the process group of `contents.zero` alone.

    A rank holds one gathered tensor on the device that gathers and one file's content in host memory. Returns the folder,
    which exists only when all of its files do.

    Raises on every rank:
        TrainingDiverged: a weight or the optimizer's state is not finite.
        PathError: a rank could not write. Like the above, it leaves nothing of this checkpoint and removes no older one.
        LeaseLost: another run has taken the lease.
    """
    folder, lease, topology = place.folder, place.lease, place.topology
    state, zero, base = contents.state, contents.zero, contents.base
    final = folder.checkpoint(state["step"])
    failed = f"checkpoint {final} could not be written: "
    partial = Path(on_main(lambda: _make_partial(folder, final, lease), topology, zero.group))
    files: dict[str, dict[str, Any]] = {}
    faults: list[OSError] = [] if wait_until_visible(partial) else [PathError("what the main rank made is not seen here")]
    tensors: dict[str, dict[str, str]] = {kind: {} for kind in zero.tensors}
    not_finite: list[str] = []
    with ThreadPoolExecutor(max_workers=1) as pool:
        writing: list[Future[None]] = []
        for number, (kind, file, names) in enumerate(_plan(zero, base.tensors if base else ())):
            owner = number % topology.world_size
            tensors[kind] |= dict.fromkeys(names, file)
            if topology.rank == owner:
                _wait(writing, faults)  # one file in memory: the last one is on disk before the next is gathered
            gathered = {}
            for name in names:
                tensor = zero.gather(name, kind, owner)
                if tensor is not None:
                    gathered[name] = tensor.cpu()
                    if not torch.isfinite(tensor).all():
                        not_finite.append(f"{kind} of {name}")
            if topology.rank == owner:
                writing.append(pool.submit(_save, partial / file, gathered, files))
        _wait(writing, faults)
    generators = _gather_rng(contents.rng, topology, zero.group)
    if topology.is_main:
        try:
            files[RNG] = save_tensors(generators, partial / RNG)
            files[STATE] = write_file(partial / STATE, [as_json(state)])
            for name, content in contents.tokenizer.items():
                files[name] = write_file(partial / name, [content])
        except OSError as error:
            faults.append(error)

    def outcome() -> dict[str, Any]:
        if faults:
            raise faults[0]
        return {"files": files, "not_finite": not_finite}

    # A rank that could not write its files must not leave the others waiting, nor a manifest that lacks them.
    try:
        shares = on_all(outcome, topology, zero.group, context=failed)
        corrupted = [tensor for share in shares for tensor in share["not_finite"]]
        if corrupted:
            more = f" and {len(corrupted) - 1} more tensors" if len(corrupted) > 1 else ""
            raise TrainingDiverged(
                f"checkpoint {final} was not written: {corrupted[0]}{more} would not be finite in it. Older checkpoints "
                "remain; lower optimizer.learning_rate, check optimizer.eps, and continue with --resume auto"
            )
    except (OSError, TrainingDiverged):
        if topology.is_main:
            _discard(partial)
        raise

    def complete() -> None:
        try:
            written = {name: entry for share in shares for name, entry in share["files"].items()}
            all_taken = state["updates"] == state["step"]
            save_manifest(partial, written, tensors, describe_base(base, final) if base else None, all_taken)
            sync(partial)
            lease.check()  # gathering took long
            replaced = _move_aside(final, lease) if os.path.lexists(final) else None
            partial.rename(final)
            sync(folder.checkpoints)
        except OSError as error:
            _discard(partial)
            raise path_error(error, f"{failed}{error}") from error
        except LeaseLost:
            _discard(partial)
            raise
        if replaced:
            with suppress(OSError):  # the checkpoint is complete all the same
                shutil.rmtree(replaced)

    on_main(complete, topology, zero.group)
    return final


def _make_partial(folder: RunFolder, final: Path, lease: Lease) -> str:
    """Make the folder that becomes `final`. Its name has the lease's nonce: nobody else's partial folder is mistaken for it."""
    partial, failed = _partial_name(final, lease), f"checkpoint {final} could not be written: "
    try:
        lease.check()
        _discard(partial)  # of a save of this process that failed
        partial.mkdir(parents=True)
        now = partial.stat().st_mtime  # by the file system's clock
    except OSError as error:
        raise path_error(error, f"{failed}{error}") from error
    for path in folder.checkpoints.glob(f"step-*{PARTIAL}"):
        try:
            if path != partial and path.is_dir() and not path.is_symlink() and _is_abandoned(path, now):
                shutil.rmtree(path)
        except OSError:
            continue  # it stays, or something else removes it
    return str(partial)


def _partial_name(checkpoint: Path, lease: Lease) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.{lease.nonce}{PARTIAL}")


def _is_abandoned(partial: Path, now: float) -> bool:
    """Whether nobody writes a partial folder any more: whoever did with a lease has none, since this run has one.

    Earlier versions had no lease, and names that are none of ours may be somebody's: these wait for STALE_SECONDS.
    """
    if re.fullmatch(rf"step-\d+\.(\w+\.)*[0-9a-f]{{{NONCE_DIGITS}}}{re.escape(PARTIAL)}", partial.name):
        return True
    return now - _changed(partial) > STALE_SECONDS


def _changed(directory: Path) -> float:
    """When the folder or a file in it was last changed."""
    return max(path.stat().st_mtime for path in (directory, *directory.iterdir()))


def _discard(partial: Path) -> None:
    """Remove an incomplete checkpoint, which must not stay on a disk that may be full."""
    shutil.rmtree(partial, ignore_errors=True)


def _move_aside(checkpoint: Path, lease: Lease) -> Path | None:
    """Take a checkpoint's name away before it is removed, so that no half of it looks like a checkpoint; returns the new name.

    Of a symbolic link only the link is removed.
    """
    if checkpoint.is_symlink():
        checkpoint.unlink()
        return None
    return checkpoint.rename(_partial_name(checkpoint.with_name(f"{checkpoint.name}.{secrets.token_hex(4)}"), lease))


def _wait(writing: "list[Future[None]]", faults: list[OSError]) -> None:
    """Wait for the file that is being written, if there is one, and note what went wrong."""
    while writing:
        error = writing.pop().exception()
        if isinstance(error, OSError):
            faults.append(error)
        elif error:
            raise error


def prune(place: RunPlace, newest: Path, keep: int, protected: Callable[[Iterable[int], int], Collection[int]]) -> None:
    """Remove older checkpoints of a run. A corrupted one does not count as kept, nor does it displace one.

    Those that a rollback set aside are removed too: `newest` is in their place.

    Args:
        place: of the run.
        newest: the checkpoint that was just written.
        keep: number of complete checkpoints to keep, newest first.
        protected: picks some more from the steps of complete checkpoints at the step of `newest`.
    """
    complete = []
    for path in place.folder.list_checkpoints():
        try:
            load_manifest(path)
            complete.append(path)
        except (OSError, ValueError):
            continue
    step = named_step(newest)
    kept = {step, *protected([named_step(path) for path in complete], step)}
    for old in [
        *(path for path in complete[keep:] if named_step(path) not in kept),
        *place.folder.checkpoints.glob(f"step-*{REWOUND}"),
    ]:
        aside = _move_aside(old, place.lease)
        if aside:
            shutil.rmtree(aside)


def _plan(zero: ZeroState | Snapshot, left_out: Collection[str]) -> list[tuple[str, str, list[str]]]:
    """Files to write: kind, file name, parameter names, each file about FILE_BYTES large."""
    groups: list[list[str]] = []
    room = 0
    for name in (name for name in zero.parameters if name not in left_out):
        size = 4 * torch.Size(zero.shape(name)).numel()
        if room < size:
            groups.append([])
            room = FILE_BYTES
        groups[-1].append(name)
        room -= size
    return [
        (kind, f"{kind}-{index:05d}.safetensors", held)
        for index, names in enumerate(groups)
        for kind, of_kind in zero.tensors.items()
        if (held := [name for name in names if name in of_kind])
    ]


def _save(path: Path, tensors: dict[str, Tensor], files: dict[str, dict[str, Any]]) -> None:
    files[path.name] = save_tensors(tensors, path)


def _gather_rng(rng: Tensor, topology: Topology, group: dist.ProcessGroup | None) -> dict[str, Tensor]:
    """Generator state of every rank, by name."""
    mine = rng.to(device_of(group))
    everyone = [torch.empty_like(mine) for _ in range(topology.world_size)]
    dist.all_gather(everyone, mine, group)
    return {f"rank{rank}": snapshot.cpu() for rank, snapshot in enumerate(everyone)}
