"""Gathers tensors from all ranks, and writes their files."""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from megatape.checkpoint.format.records import FileRecord
from megatape.checkpoint.format.tensors import save_tensors
from megatape.checkpoint.save.file_plan import TensorFile
from megatape.distributed.topology import Topology
from megatape.zero.state.interfaces import TensorSource


class TensorWrites(NamedTuple):
    """Tensor files that this rank writes.

    Attributes:
        records: File name -> size and hash, or the error raised while writing. All are done.
        not_finite: Tensors in these files that are not finite.
    """

    records: dict[str, Future[FileRecord]]
    not_finite: list[str]


def write_tensors(folder: Path, files: list[TensorFile], tensors: TensorSource, topology: Topology) -> TensorWrites:
    """Gather and write tensors. One rank writes each file while the next one is being gathered. Collective.

    Args:
        folder: Folder to write to.
        files: Files to write, the same on all ranks.
        tensors: Tensors to gather.
        topology: All ranks.

    Returns:
        This rank's files. Errors of writing them are in their records.
    """
    writes = TensorWrites({}, [])
    with ThreadPoolExecutor(max_workers=1) as pool:
        for number, file in enumerate(files):
            owner = number % topology.world_size
            is_owner = topology.rank == owner
            if is_owner:
                # Finish the last file before gathering the next, so that only one is in memory.
                wait(writes.records.values())

            gathered: dict[str, Tensor] = {}
            for name in file.parameters:
                tensor = tensors.gather(name, file.kind, owner)
                if tensor is None:
                    continue
                gathered[name] = tensor.cpu()
                if not torch.isfinite(tensor).all():
                    writes.not_finite.append(f"{file.kind} of {name}")
            if is_owner:
                writes.records[file.name] = pool.submit(save_tensors, gathered, folder / file.name)
    return writes
