"""Writing a checkpoint from all ranks: each file by one of them, in parallel, and nothing visible until all of it is there.

`Background` writes it while training goes on.
"""

import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.features import Feature
from megatape.checkpoint.manifest import RNG, STATE, as_json, load_manifest, save_manifest, write_file
from megatape.checkpoint.tensors import StoredWeights, describe_base, save_tensors
from megatape.data.tokenizers.tokenizer import check_file_name
from megatape.distributed.exchange import exchange, on_all, on_main
from megatape.distributed.topology import Topology
from megatape.errors import PathError, TrainingDiverged, UserError, content_errors, path_error
from megatape.reliability.holder import NONCE_DIGITS
from megatape.reliability.lease import Lease
from megatape.reliability.shared_folder import wait_until_visible
from megatape.reliability.watch import BACKGROUND_GROUP
from megatape.run_folder import ROLLED_BACK, named_step
from megatape.utils.files import rename, sync
from megatape.zero.state import Snapshot, ZeroState

PARTIAL = ".tmp"  # suffix of a folder that is not complete
STALE_SECONDS = 3600.0  # seconds without a change after which a partial folder is no longer being written
FILE_BYTES = 2**30  # tensors of one kind are grouped into files of about this size: a rank's buffer

FileEntry = dict[str, Any]  # size and sha256 of a file, as the manifest records them
TensorFile = tuple[str, str, list[str]]  # kind of tensor, file name, parameter names
COLLECTIVE_ERRORS = (OSError, UserError)  # of a save or of training: raised on all ranks alike


@dataclass(frozen=True)
class CheckpointContents:
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


def write_checkpoint(environment: RunEnvironment, contents: CheckpointContents) -> Path:
    """Write a checkpoint into the run's folder. Collective over all ranks, by the process group of `contents.zero` alone.

    A rank holds one gathered tensor on the device that gathers and one file's content in host memory. Returns the folder,
    which exists only when all of its files do.

    Raises on every rank:
        TrainingDiverged: a weight or the optimizer's state is not finite.
        PathError: a rank could not write. Like the above, it leaves nothing of this checkpoint and removes no older one.
        LeaseLost: another run has taken the lease.
    """
    topology = environment.topology
    group = contents.zero.group
    final = environment.folder.checkpoint(contents.state["step"])
    try:
        partial = on_main(lambda: _make_partial(environment, final), topology, group)
        is_visible = wait_until_visible(partial)
        files = _plan(contents.zero, contents.base.tensors if contents.base else ())
        tensors, not_finite = _write_tensors(partial, files, contents.zero, topology)
        generators = {f"rank{rank}": state for rank, state in enumerate(exchange(contents.rng, topology, group))}

        def finish_share() -> tuple[dict[str, FileEntry], list[str]]:
            if not is_visible:
                raise PathError("what the main rank made is not seen here")
            entries = {name: writing.result() for name, writing in tensors.items()}
            return entries | (_write_rest(partial, contents, generators) if topology.is_main else {}), not_finite

        # A rank that could not write its files must not leave the others waiting, nor a manifest that lacks them.
        shares = on_all(finish_share, topology, group)
        _check_finite([tensor for _, corrupted in shares for tensor in corrupted], final)
        written: dict[str, FileEntry] = {}
        for entries, _ in shares:
            assert not written.keys() & entries.keys(), "write_file creates each file once"
            written |= entries
        on_main(lambda: _complete(partial, final, environment, files, written, contents), topology, group)
    except (OSError, UserError) as error:
        if topology.is_main:
            shutil.rmtree(_partial_name(final, environment.lease), ignore_errors=True)  # a disk that may be full needs the room
        if isinstance(error, OSError):
            raise path_error(error, f"checkpoint {final} could not be written: {error}") from error
        raise
    return final


def _make_partial(environment: RunEnvironment, final: Path) -> Path:
    """Make the folder that becomes `final`. Its name has the lease's nonce: nobody else's partial folder is mistaken for it."""
    partial = _partial_name(final, environment.lease)
    environment.lease.check()
    shutil.rmtree(partial, ignore_errors=True)  # of a save of this process that failed
    partial.mkdir(parents=True)
    now = partial.stat().st_mtime  # by the file system's clock
    for path in environment.folder.checkpoints.glob(f"step-*{PARTIAL}"):
        with suppress(OSError):  # it stays, or something else removes it
            if path != partial and path.is_dir() and not path.is_symlink() and _is_abandoned(path, now):
                shutil.rmtree(path)
    return partial


def _plan(zero: ZeroState | Snapshot, left_out: Collection[str]) -> list[TensorFile]:
    """Files of tensors to write, each about FILE_BYTES large."""
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


def _write_tensors(
    partial: Path, files: list[TensorFile], zero: ZeroState | Snapshot, topology: Topology
) -> tuple[dict[str, Future[FileEntry]], list[str]]:
    """Gather tensors and write them, each file by one rank, which meanwhile gathers for the next one. Collective.

    Returns:
        This rank's files, written or failed by now, and the tensors among them that are not finite.
    """
    writing: dict[str, Future[FileEntry]] = {}
    not_finite: list[str] = []
    with ThreadPoolExecutor(max_workers=1) as pool:
        for number, (kind, file, names) in enumerate(files):
            owner = number % topology.world_size
            if topology.rank == owner:
                wait(writing.values())  # one file in memory: the last one is on disk before the next is gathered
            gathered: dict[str, Tensor] = {}
            for name in names:
                tensor = zero.gather(name, kind, owner)
                if tensor is not None:
                    gathered[name] = tensor.cpu()
                    if not torch.isfinite(tensor).all():
                        not_finite.append(f"{kind} of {name}")
            if topology.rank == owner:
                writing[file] = pool.submit(save_tensors, gathered, partial / file)
    return writing, not_finite


def _write_rest(partial: Path, contents: CheckpointContents, generators: dict[str, Tensor]) -> dict[str, FileEntry]:
    """Write the training state, the random generators and the tokenizer.

    Raises:
        OSError: A file cannot be written, or exists.
        UserError: A file name is not one of a tokenizer.
    """
    entries = {
        STATE: write_file(partial / STATE, [as_json(contents.state, STATE)]),
        RNG: save_tensors(generators, partial / RNG),
    }
    for name, content in contents.tokenizer.items():
        with content_errors(f"tokenizer file {name!r}", "remove it from the data directory"):
            check_file_name(name)
        entries[name] = write_file(partial / name, [content])
    return entries


def _check_finite(corrupted: list[str], final: Path) -> None:
    """Raise TrainingDiverged if there are tensors that are not finite."""
    if corrupted:
        more = f" and {len(corrupted) - 1} more tensors" if len(corrupted) > 1 else ""
        raise TrainingDiverged(
            f"checkpoint {final} was not written: {corrupted[0]}{more} would not be finite in it. Older checkpoints remain; "
            "lower optimizer.learning_rate, check optimizer.eps, and continue with --resume auto"
        )


def _complete(
    partial: Path,
    final: Path,
    environment: RunEnvironment,
    files: list[TensorFile],
    written: dict[str, FileEntry],
    contents: CheckpointContents,
) -> None:
    """Write the manifest and give the checkpoint its name."""
    tensors: dict[str, dict[str, str]] = {kind: {} for kind in contents.zero.tensors}
    for kind, file, names in files:
        tensors[kind] |= dict.fromkeys(names, file)
    base = describe_base(contents.base, final) if contents.base else None
    features = []
    if contents.state["updates"] != contents.state["step"]:
        features.append(Feature.SKIPPED_STEPS)
    save_manifest(partial, written, tensors, base, features)
    sync(partial)
    environment.lease.check()  # gathering took long
    replaced = _move_aside(final, environment.lease) if os.path.lexists(final) else None
    rename(partial, final)
    sync(environment.folder.checkpoints)
    if replaced:
        with suppress(OSError):  # the checkpoint is complete all the same
            shutil.rmtree(replaced)


def _partial_name(checkpoint: Path, lease: Lease) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.{lease.nonce}{PARTIAL}")


def _is_abandoned(partial: Path, now: float) -> bool:
    """Whether nobody writes a partial folder any more: whoever did with a lease has none, since this run has one.

    Earlier versions had no lease, and names that are none of ours may be somebody's: these wait for STALE_SECONDS.
    """
    if re.fullmatch(rf"step-\d+\.(\w+\.)*[0-9a-f]{{{NONCE_DIGITS}}}{re.escape(PARTIAL)}", partial.name):
        return True
    return now - max(path.stat().st_mtime for path in (partial, *partial.iterdir())) > STALE_SECONDS  # the last change


def _move_aside(checkpoint: Path, lease: Lease) -> Path | None:
    """Take a checkpoint's name away before it is removed, so that no half of it looks like a checkpoint; returns the new name.

    Of a symbolic link only the link is removed.
    """
    if checkpoint.is_symlink():
        checkpoint.unlink()
        return None
    aside = _partial_name(checkpoint.with_name(f"{checkpoint.name}.{secrets.token_hex(4)}"), lease)
    rename(checkpoint, aside)
    return aside


def prune(
    environment: RunEnvironment, newest: Path, keep: int, protected: Callable[[Iterable[int], int], Collection[int]]
) -> None:
    """Remove older checkpoints of a run. A corrupted one does not count as kept, nor does it displace one.

    Those that a rollback moved aside are removed too: `newest` is in their place.

    Args:
        environment: of the run.
        newest: the checkpoint that was just written.
        keep: number of complete checkpoints to keep, newest first.
        protected: picks some more from the steps of complete checkpoints at the step of `newest`.
    """
    complete = []
    for path in environment.folder.list_checkpoints():
        with suppress(OSError, ValueError):
            load_manifest(path)
            complete.append(path)
    step = named_step(newest)
    kept = {step, *protected([named_step(path) for path in complete], step)}
    for old in [
        *(path for path in complete[keep:] if named_step(path) not in kept),
        *environment.folder.checkpoints.glob(f"step-*{ROLLED_BACK}"),
    ]:
        if aside := _move_aside(old, environment.lease):
            shutil.rmtree(aside)


class Background:
    """A thread that writes from `snapshot`, one checkpoint at a time. Made and used by all ranks alike.

    Its collectives have a process group of their own: in that of training they would mix with those of the steps.
    """

    def __init__(self) -> None:
        self.snapshot = Snapshot(dist.new_group(backend="gloo", group_desc=BACKGROUND_GROUP))
        self._saving: Future[Path] | None = None

    @property
    def in_flight(self) -> bool:
        """Whether a checkpoint was begun and not yet finished. The same on all ranks."""
        return self._saving is not None

    def has_ended(self) -> bool:
        """Whether this rank's share of it is done, so that `finish` would not wait.

        Raises an error that the other ranks do not share, and that would leave them waiting.
        """
        if self._saving is None or not self._saving.done():
            return False
        error = self._saving.exception()
        if error and not isinstance(error, COLLECTIVE_ERRORS):
            raise error
        return True

    def start(self, write: Callable[[], Path]) -> None:
        """Let the thread write a checkpoint from the snapshot, which must not change until `finish`."""
        assert self._saving is None, "the snapshot is still being written"
        saving = self._saving = Future[Path]()

        def work() -> None:
            try:
                saving.set_result(write())
            except BaseException as error:  # noqa: BLE001 (it is raised where the run sees it)
                saving.set_exception(error)

        # A daemon: a rank whose training failed ends, even if others no longer take part in this.
        Thread(target=work, name="save", daemon=True).start()

    def finish(self) -> Path:
        """Wait for the checkpoint and return its folder, or raise what kept it from being written."""
        assert self._saving is not None
        saving = self._saving
        self._saving = None
        return saving.result()
