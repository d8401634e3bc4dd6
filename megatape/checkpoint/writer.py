"""Writing a checkpoint from all ranks: each file by one of them, in parallel, and nothing visible until all of it is there."""

import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.checkpoint.manifest import (
    RNG,
    STATE,
    TOKENIZER,
    describe,
    load_manifest,
    save_manifest,
    sync,
    write_json,
)
from megatape.checkpoint.reader import rng_snapshot
from megatape.checkpoint.tensors import save_tensors
from megatape.run_folder import RunFolder
from megatape.runtime.exchange import exchange
from megatape.runtime.shared_folder import appears
from megatape.runtime.topology import Topology
from megatape.zero.state import ZeroState

FILE_BYTES = 2**30  # tensors of one kind are grouped into files of about this size: a rank's buffer


def write_checkpoint(
    folder: RunFolder, step: int, zero: ZeroState, topology: Topology, state: dict[str, Any], tokenizer: Path, keep: int
) -> Path:
    """Write checkpoint `step` into the run's folder and remove all but the newest `keep`. Collective over all ranks.

    state: JSON object for state.json. A rank holds one gathered tensor on its device and one file's content in host memory.
    Returns the folder, which exists only when all of its files do. Raises OSError on every rank if one of them could not write."""
    final = folder.checkpoint(step)
    partial = final.with_name(final.name + ".tmp")
    if topology.is_main:
        for unfinished in folder.checkpoints.glob("step-*.tmp"):
            shutil.rmtree(unfinished)
        partial.mkdir(parents=True)
    dist.barrier()

    files: dict[str, dict[str, Any]] = {}
    faults = [] if appears(partial) else ["what the main rank made is not seen here"]
    tensors: dict[str, dict[str, str]] = {kind: {} for kind in zero.kinds}
    with ThreadPoolExecutor(max_workers=1) as pool:
        writing: list[Future[None]] = []
        for number, (kind, file, names) in enumerate(_plan(zero)):
            owner = number % topology.world_size
            tensors[kind] |= dict.fromkeys(names, file)
            if topology.rank == owner:
                _wait(writing, faults)  # one file in memory: the last one is on disk before the next is gathered
            content = {}
            for name in names:
                tensor = zero.gather(name, kind, owner)
                if tensor is not None:
                    content[name] = tensor.cpu()
            if topology.rank == owner:
                writing.append(pool.submit(_save, partial / file, content, files))
        _wait(writing, faults)
    generators = _gather_rng(topology)
    if topology.is_main:
        try:
            _save(partial / RNG, generators, files)
            write_json(partial / STATE, state)
            shutil.copyfile(tokenizer, partial / TOKENIZER)
            sync(partial / TOKENIZER)
            files |= {name: describe(partial / name) for name in (STATE, TOKENIZER)}
        except OSError as error:
            faults.append(str(error))

    # A rank that could not write its files must not leave the others waiting, nor a manifest that lacks them.
    shares = exchange({"files": files, "faults": faults}, topology)
    if failed := {rank: share["faults"] for rank, share in enumerate(shares) if share["faults"]}:
        raise OSError(
            f"checkpoint {partial} could not be written: "
            + "; ".join(f"rank {rank}: {text[0]}" for rank, text in failed.items())
        )
    if topology.is_main:
        save_manifest(partial, {name: entry for share in shares for name, entry in share["files"].items()}, tensors)
        sync(partial)
        if final.exists():  # a corrupted checkpoint of the same step, which resuming skipped
            shutil.rmtree(final)
        partial.rename(final)
        sync(folder.checkpoints)
        folder.mark_latest(final)
        _prune(folder, keep, final)
    dist.barrier()
    return final


def _wait(writing: "list[Future[None]]", faults: list[str]) -> None:
    """Wait for the file that is being written, if there is one, and note what went wrong."""
    while writing:
        error = writing.pop().exception()
        if error:
            faults.append(str(error))


def _prune(folder: RunFolder, keep: int, newest: Path) -> None:
    """Remove all but the `keep` newest complete checkpoints; a corrupted one does not count as kept, nor does it displace one."""
    complete = []
    for path in folder.list_checkpoints():
        try:
            load_manifest(path)
            complete.append(path)
        except (OSError, ValueError):
            continue
    for old in complete[keep:]:
        if old != newest:
            shutil.rmtree(old)


def _plan(zero: ZeroState) -> list[tuple[str, str, list[str]]]:
    """Files to write: kind, file name, parameter names, each file about FILE_BYTES large."""
    groups: list[list[str]] = []
    room = 0
    for name in zero.parameters:
        size = 4 * torch.Size(zero.shape(name)).numel()
        if room < size:
            groups.append([])
            room = FILE_BYTES
        groups[-1].append(name)
        room -= size
    return [(kind, f"{kind}-{index:05d}.safetensors", names) for index, names in enumerate(groups) for kind in zero.kinds]


def _save(path: Path, tensors: dict[str, Tensor], files: dict[str, dict[str, Any]]) -> None:
    save_tensors(tensors, path)
    sync(path)
    files[path.name] = describe(path)


def _gather_rng(topology: Topology) -> dict[str, Tensor]:
    """Generator state of every rank, by name."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mine = rng_snapshot().to(device)
    everyone = [torch.empty_like(mine) for _ in range(topology.world_size)]
    dist.all_gather(everyone, mine)
    return {f"rank{rank}": snapshot.cpu() for rank, snapshot in enumerate(everyone)}
