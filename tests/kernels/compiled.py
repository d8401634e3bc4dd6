"""What the Triton kernels need of a GPU, from compiling them without one.

    python -m tests.kernels.compiled

prints a table for attention that moves the state, and for attention with a bias by distance, within documents, with four query
heads for each key/value head; and for the update of the position tensor at the shapes of the 155M and 7B models.

    python -m tests.kernels.compiled capabilities

prints what those in bfloat16 need on five compute capabilities.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from megatape.attention.kernels import tile_sizes
from megatape.encodings.kernels.update import PROGRAMS
from megatape.utils.tables import markdown
from tests.kernels.launches import Launch, launches, update_launches

TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int64: "*i64", int: "i32", float: "fp32"}
ARCHITECTURES = {80: "A100", 90: "H100, H200"}  # of the first table
# KiB of shared memory that a program can have, by compute capability.
SHARED = {80: 163, 89: 99, 90: 227, 100: 227, 120: 99}
DISASSEMBLER = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
TENSOR_CORES = re.compile(r"\bHG?MMA\b")
NARROW = re.compile(r"tt\.addptr .*: !tt\.ptr<\w+>, i32")
SPILL = re.compile(r"\b(STL|LDL)\b")  # a register's number goes to local memory, or comes back


class Resources(NamedTuple):
    """Resources of a compiled kernel.

    Attributes:
        registers: Number of registers of a thread.
        shared: Bytes of shared memory of a program.
        loops: For each innermost loop with products in tensor cores, the number of such instructions, of loads and stores of
            spilled registers, and of all instructions.
        narrow: Number of tiles located by 32-bit offsets, which only offsets within a tile may be.
    """

    registers: int
    shared: int
    loops: list[tuple[int, int, int]]
    narrow: int


def compiled(launch: Launch, architecture: int) -> Resources:
    """The kernel of a launch, for the tensors and sizes of that launch."""
    signature = {}
    constants = {}
    multiples_of_16 = {}
    for index, parameter in enumerate(launch.kernel.params):
        value = launch.arguments[parameter.name]
        if parameter.is_constexpr or value is None:
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
        else:
            tensor = isinstance(value, torch.Tensor)
            signature[parameter.name] = TYPES[value.dtype if tensor else type(value)]
            if tensor or (isinstance(value, int) and value % 16 == 0):
                multiples_of_16[(index,)] = [["tt.divisibility", 16]]
    kernel: Any = triton.compile(
        ASTSource(launch.kernel, signature, constants, multiples_of_16),
        target=GPUTarget("cuda", architecture, 32),
        options={"num_warps": launch.tile.warps, "num_stages": launch.tile.stages},
    )
    with TemporaryDirectory() as folder:
        binary = Path(folder, "kernel.cubin")
        binary.write_bytes(kernel.asm["cubin"])
        usage, code = (
            subprocess.run([DISASSEMBLER, option, binary], check=True, capture_output=True, text=True).stdout
            for option in ("-res-usage", "-sass")
        )
    registers = re.search(r"REG:(\d+)", usage)
    assert registers is not None, usage
    return Resources(int(registers[1]), kernel.metadata.shared, list(_loops(code)), len(NARROW.findall(kernel.asm["ttir"])))


def _loops(code: str) -> Iterator[tuple[int, int, int]]:
    """A loop is what lies between a backward jump and its target."""
    instructions = [(int(found[1], 16), found[2]) for found in re.finditer(r"/\*([0-9a-f]{4,})\*/\s+(.*?);", code)]
    loops = []
    for address, instruction in instructions:
        jump = re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", instruction)
        if jump and int(jump[1], 16) < address:
            body = [text for at, text in instructions if int(jump[1], 16) <= at <= address]
            loops.append((int(jump[1], 16), address, body))
    for start, end, body in loops:
        inner = any(start <= other[0] and other[1] <= end and other[:2] != (start, end) for other in loops)
        if not inner and (products := sum(bool(TENSOR_CORES.search(text)) for text in body)):
            yield products, sum(bool(SPILL.search(text)) for text in body), len(body)


def tiles_of(architecture: int) -> AbstractContextManager[object]:
    """A context with the tiles of a compute capability."""
    return patch.object(tile_sizes, "shared_memory", lambda device: SHARED[architecture] * 1024)


def attention_launches(head_dim: int, dtype: torch.dtype, biased: bool = False) -> list[Launch]:
    """Those that the table shows."""
    return launches((2, 4096, 32, 8, head_dim), dtype, documents=True, biased=biased)


def position_launches(channels: int, head_dim: int) -> list[Launch]:
    """The update of the position tensor with as many query heads as channels, and an inner size of four times as many."""
    return update_launches((2, 4096, channels, channels, head_dim), 4 * channels, torch.bfloat16, PROGRAMS)


def main() -> None:
    """Print the table."""
    precisions = (torch.bfloat16, False), (torch.bfloat16, True), (torch.float32, False)
    shown: list[tuple[str, int, Callable[[], list[Launch]]]] = [
        (f"{str(dtype).removeprefix('torch.')}{', bias' * biased}", size, partial(attention_launches, size, dtype, biased))
        for (dtype, biased), size in product(precisions, (64, 128))
    ]
    shown += [("bfloat16", size, partial(position_launches, channels, size)) for channels, size in ((12, 64), (32, 128))]
    rows = []
    for precision, head_dim, recorded in shown:
        by_gpu = []
        for architecture in ARCHITECTURES:
            with tiles_of(architecture):
                by_gpu.append(recorded())
        for same_kernel in zip(*by_gpu, strict=True):
            rows += [_row(precision, head_dim, *case) for case in zip(same_kernel, ARCHITECTURES, strict=True)]
    titles = ["precision", "R", "kernel", "queries × keys", "warps", "GPU", "registers", "shared, KiB", "loops"]
    print(markdown(titles, rows))


def _row(precision: str, head_dim: int, launch: Launch, architecture: int) -> list[str]:
    tile = launch.tile
    found = compiled(launch, architecture)
    kernel = launch.kernel.__name__.removesuffix("_kernel").replace("_", " ")
    loops = "; ".join(f"{products}, {spills} of {size}" for products, spills, size in found.loops)
    sizes = "a token" if kernel.startswith("update") else f"{tile.queries} × {tile.keys}"
    numbers = map(str, (tile.warps, ARCHITECTURES[architecture], found.registers, found.shared // 1024))
    return [precision, str(head_dim), kernel, sizes, *numbers, loops]


def capabilities() -> None:
    """Print registers, KiB of shared memory, and loads and stores of spilled registers."""
    rows: dict[tuple[str, int], list[str]] = {}
    for architecture, shared in SHARED.items():
        with tiles_of(architecture):
            of_attention = [(size, launch) for size in (64, 128) for launch in attention_launches(size, torch.bfloat16)]
        updates = [(size, launch) for channels, size in ((12, 64), (32, 128)) for launch in position_launches(channels, size)]
        for size, launch in [*of_attention, *updates]:
            found = compiled(launch, architecture)
            fits = "" if found.shared <= shared * 1024 else ", too much"
            cells = rows.setdefault((launch.kernel.__name__.removesuffix("_kernel").replace("_", " "), size), [])
            cells.append(f"{found.registers}, {found.shared // 1024}{fits}, {sum(spills for _, spills, _ in found.loops)}")
            print(triton.__version__, architecture, launch.kernel.__name__, size, cells[-1], file=sys.stderr, flush=True)
    titles = ["kernel", "R", *(f"{architecture / 10}" for architecture in SHARED)]
    print(markdown(titles, [[name, str(size), *cells] for (name, size), cells in rows.items()]))


if __name__ == "__main__":
    capabilities() if sys.argv[1:] == ["capabilities"] else main()
