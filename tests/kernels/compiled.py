"""GPU resources of the Triton kernels, found by compiling them without a GPU.

    python -m tests.kernels.compiled

prints a table with two kinds of attention, moving the state or with a bias by distance, and with the position update at the
shapes of the 155M and 7B models. Attention has packed documents and four query heads per key/value head.

    python -m tests.kernels.compiled capabilities

prints the resources of the bfloat16 kernels that move the state on five compute capabilities.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from megatape.nn.kernels import devices
from megatape.utils.text.tables import markdown
from tests.kernels.launches import Launch, launches, update_launches

TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int64: "*i64", int: "i32", float: "fp32"}
# GPUs in the first table, by compute capability
GPUS = {80: "A100", 90: "H100, H200"}
# Maximum shared memory per program, by compute capability
SHARED_KIB = {80: 163, 89: 99, 90: 227, 100: 227, 120: 99}
# Multiprocessors on an H200, and warp instructions issued a second by each: four per cycle, at 1.7 GHz
H200_MULTIPROCESSORS = 132
H200_INSTRUCTION_RATE = 4 * 1.7e9
# Bytes copied per second on an H200: 87% of its memory bandwidth
H200_COPY_RATE = 4.2e12
# Channels and head size in the 155M and 7B models
MODELS = ((12, 64), (32, 128))
HEAD_DIMS = (64, 128)
DISASSEMBLER = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
TENSOR_CORES = re.compile(r"\bHG?MMA\b")
NARROW = re.compile(r"tt\.addptr .*: !tt\.ptr<\w+>, i32")
# A spilled register is stored in local memory, or loaded from there.
SPILL = re.compile(r"\b(STL|LDL)\b")
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);")
JUMP = re.compile(r"\bBRA\b.*?(0x[0-9a-f]+)")


class Loop(NamedTuple):
    """Instruction counts in a loop.

    Attributes:
        products: Products in tensor cores.
        spills: Loads and stores spilling registers.
        instructions: All instructions.
    """

    products: int
    spills: int
    instructions: int


class Resources(NamedTuple):
    """Resources used by a compiled kernel.

    Attributes:
        registers: Registers per thread.
        shared: Shared memory per program, in bytes.
        loops: Innermost loops with products in tensor cores.
        narrow: Number of tiles located by 32-bit offsets. Only offsets within a tile may be narrow.
    """

    registers: int
    shared: int
    loops: list[Loop]
    narrow: int


class Row(NamedTuple):
    """Launches in a table row, before being compiled.

    Attributes:
        precision: Data type, and whether there is a bias.
        head_dim: Head size R.
        launches: Returns the launches with tiles for the current compute capability.
    """

    precision: str
    head_dim: int
    launches: Callable[[], list[Launch]]


def compile_launch(launch: Launch, architecture: int) -> Resources:
    """Compile a launch's kernel for its tensors and sizes."""
    signature = {}
    constants = {}
    multiples_of_16 = {}
    for index, parameter in enumerate(launch.kernel.params):
        value = launch.arguments[parameter.name]
        if parameter.is_constexpr or value is None:
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
            continue
        if isinstance(value, torch.Tensor):
            signature[parameter.name] = TYPES[value.dtype]
            is_multiple = True
        else:
            signature[parameter.name] = TYPES[type(value)]
            is_multiple = isinstance(value, int) and value % 16 == 0
        if is_multiple:
            multiples_of_16[(index,)] = [["tt.divisibility", 16]]
    kernel: Any = triton.compile(
        ASTSource(launch.kernel, signature, constants, multiples_of_16),
        target=GPUTarget("cuda", architecture, 32),
        options={"num_warps": launch.tile.warps, "num_stages": launch.tile.stages},
    )
    with TemporaryDirectory() as folder:
        binary = Path(folder, "kernel.cubin")
        binary.write_bytes(kernel.asm["cubin"])
        usage = disassemble(binary, "-res-usage")
        code = disassemble(binary, "-sass")
    registers = re.search(r"REG:(\d+)", usage)
    assert registers is not None, usage
    num_narrow = len(NARROW.findall(kernel.asm["ttir"]))
    return Resources(int(registers[1]), kernel.metadata.shared, list(_loops(code)), num_narrow)


def disassemble(binary: Path, option: str) -> str:
    """Return what cuobjdump prints about a binary."""
    return subprocess.run([DISASSEMBLER, option, binary], check=True, capture_output=True, text=True).stdout


def _loops(code: str) -> Iterator[Loop]:
    """Yield innermost loops with products in tensor cores. A loop is the code between a backward jump and its target."""
    instructions = [(int(match[1], 16), match[2]) for match in INSTRUCTION.finditer(code)]
    ranges = set()
    for address, text in instructions:
        jump = JUMP.search(text)
        if jump and int(jump[1], 16) < address:
            ranges.add((int(jump[1], 16), address))
    for start, end in sorted(ranges, key=lambda bounds: bounds[1]):
        nested = [inner for inner in ranges if start <= inner[0] and inner[1] <= end and inner != (start, end)]
        body = [text for address, text in instructions if start <= address <= end]
        num_products = sum(1 for text in body if TENSOR_CORES.search(text))
        if num_products and not nested:
            yield Loop(num_products, sum(1 for text in body if SPILL.search(text)), len(body))


def tiles_of(architecture: int) -> AbstractContextManager[object]:
    """Use a compute capability's tiles in the block."""
    return patch.object(devices, "shared_memory", lambda device: SHARED_KIB[architecture] * 1024)


def attention_launches(head_dim: int, dtype: torch.dtype, biased: bool = False, decays: bool = False) -> list[Launch]:
    """Return the attention launches shown in the tables."""
    return launches((2, 4096, 32, 8, head_dim), dtype, documents=True, biased=biased, decays=decays)


def position_launches(channels: int, head_dim: int) -> list[Launch]:
    """Return launches for the position update, with one query head per channel and an inner size of four times the channels."""
    return update_launches((2, 4096, channels, channels, head_dim), 4 * channels, torch.bfloat16)


def share_of_copy(launch: Launch) -> float:
    """Return the time for issuing an update kernel's instructions on an H200, as a share of the time for copying its bytes.

    Reaching a copy's speed requires a share below one, which is not sufficient: instructions also wait for each other.
    """
    resources = compile_launch(launch, 90)
    (loop,) = resources.loops
    tokens = launch.arguments["tokens"]
    tokens_per_tile = launch.arguments["ROWS"] // launch.arguments["CHANNELS_P"]
    num_instructions = loop.instructions * launch.tile.warps * tokens / tokens_per_tile
    instruction_seconds = num_instructions / (H200_MULTIPROCESSORS * H200_INSTRUCTION_RATE)
    tensors = [value for value in launch.arguments.values() if isinstance(value, torch.Tensor)]
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return instruction_seconds / (num_bytes / H200_COPY_RATE)


def main() -> None:
    """Print registers, shared memory and loops for all kernels on GPUS."""
    rows = []
    for row in _table_rows():
        by_gpu = []
        for architecture in GPUS:
            with tiles_of(architecture):
                by_gpu.append(row.launches())
        for same_kernel in zip(*by_gpu, strict=True):
            for launch, architecture in zip(same_kernel, GPUS, strict=True):
                rows.append(_cells(row, launch, architecture))
    titles = ["precision", "R", "kernel", "queries × keys", "warps", "GPU", "registers", "shared, KiB", "loops"]
    print(markdown(titles, rows))


def _table_rows() -> Iterator[Row]:
    for dtype, biased in ((torch.bfloat16, False), (torch.bfloat16, True), (torch.float32, False)):
        precision = str(dtype).removeprefix("torch.")
        if biased:
            precision += ", bias"
        for head_dim in HEAD_DIMS:
            yield Row(precision, head_dim, partial(attention_launches, head_dim, dtype, biased))
    for channels, head_dim in MODELS:
        yield Row("bfloat16", head_dim, partial(position_launches, channels, head_dim))


def _cells(row: Row, launch: Launch, architecture: int) -> list[str]:
    tile = launch.tile
    kernel = _name(launch)
    resources = compile_launch(launch, architecture)
    sizes = f"{tile.queries} × {tile.keys}"
    if kernel.startswith("update"):
        sizes = f"{launch.arguments['ROWS'] // launch.arguments['CHANNELS_P']} tokens"
    return [
        row.precision,
        str(row.head_dim),
        kernel,
        sizes,
        str(tile.warps),
        GPUS[architecture],
        str(resources.registers),
        str(resources.shared // 1024),
        "; ".join(f"{loop.products}, {loop.spills} of {loop.instructions}" for loop in resources.loops),
    ]


def _name(launch: Launch) -> str:
    name: str = launch.kernel.__name__
    return name.removesuffix("_kernel").replace("_", " ")


def capabilities() -> None:
    """Print registers, KiB of shared memory, and loads and stores of spilled registers, by compute capability."""
    rows: dict[tuple[str, int], list[str]] = {}
    for architecture, shared_kib in SHARED_KIB.items():
        sized_launches = []
        with tiles_of(architecture):
            for head_dim in HEAD_DIMS:
                sized_launches += [(head_dim, launch) for launch in attention_launches(head_dim, torch.bfloat16)]
        for channels, head_dim in MODELS:
            sized_launches += [(head_dim, launch) for launch in position_launches(channels, head_dim)]
        for head_dim, launch in sized_launches:
            resources = compile_launch(launch, architecture)
            shared = str(resources.shared // 1024)
            if resources.shared > shared_kib * 1024:
                shared += ", too much"
            cell = f"{resources.registers}, {shared}, {sum(loop.spills for loop in resources.loops)}"
            rows.setdefault((_name(launch), head_dim), []).append(cell)
            print(triton.__version__, architecture, launch.kernel.__name__, head_dim, cell, file=sys.stderr, flush=True)
    titles = ["kernel", "R", *(f"{architecture / 10}" for architecture in SHARED_KIB)]
    print(markdown(titles, [[name, str(head_dim), *cells] for (name, head_dim), cells in rows.items()]))


if __name__ == "__main__":
    if sys.argv[1:] == ["capabilities"]:
        capabilities()
    else:
        main()
