"""GPU resources of FlashAttention-4's Hopper kernels for values twice as wide as queries, compiled without a GPU.

This is a process of its own, because the package reads the compilation target when it is imported:

    python -m tests.kernels.compiled_fa4

prints a table, and with the argument `json` a JSON list of lists with the fields of `Resources`. Tensors are fake.
"""

import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from megatape.attention.fa4 import package
from megatape.attention.fa4.package import Scope
from megatape.attention.fa4.tiles import LONG, WIDE_HEAD_DIMS, backward_tile, forward_tile
from megatape.utils.pytorch.torch_internals import FakeTensorMode
from megatape.utils.text.tables import markdown
from tests.kernels.compiled import SPILL, TENSOR_CORES, disassemble

BATCH = 2
HEADS = 16
DOCUMENTS = 5
# Shared memory in the compiler's intermediate code: one tensor of bytes, from which the others are cut.
SHARED_MEMORY = re.compile(r'cute\.memref<i8, smem, align<\d+>, "(\d+):1">')
REGISTER = re.compile(r"\bR(\d+)\b")
KERNELS = {"forward": "flash_fwd_sm90", "backward": "flash_bwd_sm90"}


@dataclass(frozen=True)
class Case:
    """Attention for compiling kernels.

    Attributes:
        head_dim: Width of queries R. Values have 2R.
        length: Tokens per sample.
        dtype: Data type of all inputs.
        has_documents: Whether samples are packed documents.
        window: Number of tokens attended to by each token, or None for all earlier ones.
        deterministic: Whether query gradients are added in a fixed order.
    """

    head_dim: int
    length: int
    dtype: torch.dtype = torch.bfloat16
    has_documents: bool = False
    window: int | None = None
    deterministic: bool = False

    @property
    def label(self) -> str:
        """Name for tables and messages."""
        words = [f"R {self.head_dim}, {self.length} tokens"]
        if self.dtype != torch.bfloat16:
            words.append("float16")
        if self.has_documents:
            words.append("documents")
        if self.window is not None:
            words.append("window")
        if self.deterministic:
            words.append("deterministic")
        return ", ".join(words)


# Tiles for both lengths, and every kernel option with the tiles for measured head sizes
CASES = [
    *(Case(head_dim, LONG) for head_dim in WIDE_HEAD_DIMS),
    *(Case(head_dim, 2 * LONG) for head_dim in (64, 128)),
    Case(64, LONG, torch.float16, has_documents=True, window=512, deterministic=True),
    *(Case(head_dim, 2 * LONG, has_documents=True, window=512, deterministic=True) for head_dim in (64, 128)),
]


class Resources(NamedTuple):
    """Resources used by a kernel.

    Attributes:
        case: Label for the case.
        kernel: "forward" or "backward".
        tile: Queries x keys.
        shared: Bytes of shared memory per program.
        registers: Highest register in the machine code, plus one.
        spills: Loads and stores spilling registers.
        products: Instructions for products in tensor cores.
    """

    case: str
    kernel: str
    tile: str
    shared: int
    registers: int
    spills: int
    products: int


def main(words: list[str]) -> None:
    """Compile all cases and print their resources."""
    with TemporaryDirectory() as folder:
        os.environ |= {
            "CUTE_DSL_ARCH": "sm_90a",
            "CUTE_DSL_KEEP_CUBIN": "1",
            "CUTE_DSL_KEEP_IR": "1",
            "CUTE_DSL_DUMP_DIR": folder,
            "FLASH_ATTENTION_ARCH": "sm_90",
            "FLASH_ATTENTION_NUM_SMS": "132",
            # A kernel from a cache leaves no files.
            "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "0",
        }
        with _without_gpu():
            rows = [row for case in CASES for row in _compile(case, Path(folder))]
    if words == ["json"]:
        print(json.dumps(rows))
        return
    cells = []
    for row in rows:
        size = f"{row.shared / 1024:.0f}"
        cells.append([row.case, row.kernel, row.tile, size, str(row.registers), str(row.spills), str(row.products)])
    print(markdown(["case", "pass", "queries x keys", "shared, KiB", "registers", "spills", "wgmma"], cells))


def _without_gpu() -> AbstractContextManager[object]:
    """Let the deterministic backward pass compile without asking for the current GPU."""
    from cutlass.cute import runtime

    own = runtime.from_dlpack

    def from_dlpack(tensor: Tensor, **options: object) -> object:
        return own(tensor, **options, enable_tvm_ffi=True)

    return patch("flash_attn.cute.utils.from_dlpack", from_dlpack)


def _compile(case: Case, folder: Path) -> Iterator[Resources]:
    """Compile both passes in a case, and yield the resources of kernels missing in earlier cases."""
    print(case.label, file=sys.stderr, flush=True)
    head_dim = case.head_dim
    rows: tuple[int, ...] = (BATCH, case.length)
    log_sum_shape: tuple[int, ...] = (BATCH, HEADS, case.length)
    if case.has_documents:
        rows = (BATCH * case.length,)
        log_sum_shape = (HEADS, BATCH * case.length)
    with warnings.catch_warnings(), FakeTensorMode(), torch.device("cuda"):
        warnings.simplefilter("ignore")
        q, k = (torch.empty(*rows, HEADS, head_dim, dtype=case.dtype) for _ in range(2))
        v, out, d_out = (torch.empty(*rows, HEADS, 2 * head_dim, dtype=case.dtype) for _ in range(3))
        ends = None
        if case.has_documents:
            ends = torch.empty(DOCUMENTS + 1, dtype=torch.int32)
        scope = Scope(case.length, case.window, ends, case.deterministic)
        tile = forward_tile(head_dim, case.length)
        package.forward(q, k, v, scope, tile)
        yield from _resources(case, "forward", f"{tile.queries} x {tile.keys}", folder)

        log_sum = torch.empty(log_sum_shape)
        backward = backward_tile(head_dim, case.length)
        package.backward(q, k, v, out, d_out, log_sum, scope, backward)
        yield from _resources(case, "backward", f"{backward['m_block_size']} x {backward['n_block_size']}", folder)


def _resources(case: Case, kernel: str, tile: str, folder: Path) -> Iterator[Resources]:
    """Yield the resources of a kernel just compiled, if there is one, removing all files."""
    for binary in folder.glob(f"*{KERNELS[kernel]}*.cubin"):
        (code_file,) = folder.glob(f"*{KERNELS[kernel]}*.mlir")
        shared = SHARED_MEMORY.search(code_file.read_text())
        assert shared is not None, code_file
        code = disassemble(binary, "-sass")
        registers = [int(number) for number in REGISTER.findall(code)]
        yield Resources(
            case=case.label,
            kernel=kernel,
            tile=tile,
            shared=int(shared[1]),
            registers=max(registers) + 1,
            spills=len(SPILL.findall(code)),
            products=len(TENSOR_CORES.findall(code)),
        )
    for file in folder.iterdir():
        file.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
