"""Parts run by `megatape benchmark gpu`, starting with the most useful ones.

A part is a module with `measure(bench, *arguments)`, which records results, and `table(results)`, which yields paragraphs.
It is imported only when it runs, because a machine may lack its packages.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megatape.lab.benchmark.gpu.bench import Bench
    from megatape.lab.benchmark.gpu.results import Results

PACKAGE = "megatape.lab.benchmark.gpu.parts"
# A part may take this multiple of its expected seconds.
TIME_LIMIT = 3


@dataclass(frozen=True)
class BenchmarkPart:
    """Measurements sharing a process.

    Attributes:
        name: Name of the part, with which its keys start.
        module: Module with `measure` and `table`.
        seconds: Expected seconds on a GPU.
        order: Position in table.md. Parts sharing a module share a table.
        arguments: Arguments for `measure`, after the Bench.
        earlier_name: Name in results of earlier versions, which had one part for several of today's.
    """

    name: str
    module: str
    seconds: int
    order: int = 0
    arguments: tuple[str, ...] = ()
    earlier_name: str | None = None

    def measure(self, bench: "Bench") -> None:
        """Record the part's results."""
        self._load().measure(bench, *self.arguments)

    @property
    def table(self) -> "Callable[[Results], Iterator[str]]":
        """Function yielding paragraphs about all parts with this module."""
        table: Callable[[Results], Iterator[str]] = self._load().table
        return table

    def _load(self) -> ModuleType:
        return import_module(self.module)


def _pretrain(shape: str, stage: int, seconds: int) -> BenchmarkPart:
    """Return the part that trains a shape at a ZeRO stage."""
    return BenchmarkPart(
        f"pretrain {shape} zero {stage}",
        f"{PACKAGE}.pretrain",
        seconds,
        order=7,
        arguments=(shape, str(stage)),
        earlier_name="pretrain",
    )


PARTS: tuple[BenchmarkPart, ...] = (
    BenchmarkPart("machine", f"{PACKAGE}.machine", seconds=10, order=1),
    BenchmarkPart("ceilings", f"{PACKAGE}.ceilings", seconds=20, order=5),
    BenchmarkPart("attention", f"{PACKAGE}.attention", seconds=220, order=3),
    BenchmarkPart("step 155m", f"{PACKAGE}.steps", seconds=120, order=2, arguments=("155m",)),
    BenchmarkPart("update", f"{PACKAGE}.update", seconds=20, order=4),
    _pretrain("155m", 2, seconds=180),
    BenchmarkPart("step 1b", f"{PACKAGE}.steps", seconds=195, order=2, arguments=("1b",)),
    BenchmarkPart("profile", f"{PACKAGE}.profile", seconds=100, order=10),
    _pretrain("155m", 1, seconds=90),
    _pretrain("155m", 3, seconds=60),
    _pretrain("1b", 2, seconds=270),
    _pretrain("1b", 1, seconds=170),
    _pretrain("1b", 3, seconds=100),
    BenchmarkPart("tests", f"{PACKAGE}.tests", seconds=240, order=11),
    BenchmarkPart("fp8", f"{PACKAGE}.fp8", seconds=240, order=6),
    BenchmarkPart("step 7b", f"{PACKAGE}.steps", seconds=170, order=2, arguments=("7b",)),
    BenchmarkPart("serving", f"{PACKAGE}.serving", seconds=300, order=8),
    BenchmarkPart("tiles", f"{PACKAGE}.tiles", seconds=300, order=9),
)
