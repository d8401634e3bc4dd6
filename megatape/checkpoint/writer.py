"""Writing a checkpoint from all ranks: each file by one of them, in parallel, and nothing visible until all of it is there."""

import json
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from megatape.checkpoint.manifest import (
    FORMAT,
    MANIFEST,
    RNG,
    STATE,
    TOKENIZER,
    describe,
    folder_name,
    list_checkpoints,
    sync,
    write_json,
)
from megatape.checkpoint.reader import rng_snapshot
from megatape.parallel.topology import Topology
from megatape.parallel.zero_state import KINDS, ZeroState

FILE_BYTES = 2**30  # tensors of one kind are grouped into files of about this size: a rank's buffer


def write_checkpoint(
    root: Path, step: int, zero: ZeroState, topology: Topology, state: dict[str, Any], tokenizer: Path, keep: int
) -> Path:
    """Write checkpoint `step` under `root` and remove all but the newest `keep`. Collective over all ranks.

    state: JSON object for state.json. A rank holds one gathered tensor and the file it is filling or writing. Returns the
    folder, which exists only when all of its files do."""
    final = root / folder_name(step)
    partial = final.with_name(final.name + ".tmp")
    if topology.is_main:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.barrier()

    files: dict[str, dict[str, Any]] = {}
    tensors: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    with ThreadPoolExecutor(max_workers=1) as pool:
        writing: Future[None] | None = None
        for number, (kind, file, names) in enumerate(_plan(zero)):
            owner = number % topology.world_size
            tensors[kind] |= dict.fromkeys(names, file)
            gathered = {name: zero.gather(name, kind, owner) for name in names}
            if topology.rank == owner:
                if writing:
                    writing.result()  # at most one file waits to be written while the next is gathered
                content = {name: tensor.cpu() for name, tensor in gathered.items() if tensor is not None}
                writing = pool.submit(_save, partial / file, content, files)
        if writing:
            writing.result()
    generators = _gather_rng(topology)
    if topology.is_main:
        _save(partial / RNG, generators, files)
        write_json(partial / STATE, state)
        shutil.copyfile(tokenizer, partial / TOKENIZER)
        files |= {name: describe(partial / name) for name in (STATE, TOKENIZER)}
    # Ranks share a file system but no convenient way to exchange JSON: each leaves what it wrote for the main one.
    share = partial / f"files-{topology.rank:05d}.json"
    share.write_text(json.dumps(files))
    dist.barrier()

    if topology.is_main:
        for path in sorted(partial.glob("files-*.json")):
            files |= json.loads(path.read_text())
            path.unlink()
        write_json(partial / MANIFEST, {"format": FORMAT, "files": files, "tensors": tensors})
        sync(partial)
        if final.exists():  # a damaged checkpoint of the same step, which resuming skipped
            shutil.rmtree(final)
        partial.rename(final)
        sync(root)
        for old in list_checkpoints(root)[keep:]:
            shutil.rmtree(old)
    dist.barrier()
    return final


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
    return [(kind, f"{kind}-{index:05d}.safetensors", names) for index, names in enumerate(groups) for kind in KINDS]


def _save(path: Path, tensors: dict[str, Tensor], files: dict[str, dict[str, Any]]) -> None:
    save_file(tensors, path)
    sync(path)
    files[path.name] = describe(path)


def _gather_rng(topology: Topology) -> dict[str, Tensor]:
    """Generator state of every rank, by name."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mine = rng_snapshot().to(device)
    everyone = [torch.empty_like(mine) for _ in range(topology.world_size)]
    dist.all_gather(everyone, mine)
    return {f"rank{rank}": snapshot.cpu() for rank, snapshot in enumerate(everyone)}
