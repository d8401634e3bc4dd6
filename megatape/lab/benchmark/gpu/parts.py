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

PACKAGE = "megatape.lab.benchmark.gpu"
# A part may take this multiple of its expected seconds.
TIME_LIMIT = 3


@dataclass(frozen=True)
class Part:
    """Measurements sharing a process.

    Attributes:
        name: Part name, with which its keys start.
        module: Module with `measure` and `table`.
        seconds: Expected seconds on a GPU.
        order: Position in table.md. Parts sharing a module share a table.
        arguments: Arguments for `measure`, after the Bench.
    """

    name: str
    module: str
    seconds: int
    order: int = 0
    arguments: tuple[str, ...] = ()

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


PARTS: tuple[Part, ...] = (
    Part("machine", f"{PACKAGE}.machine", seconds=10, order=1),
    Part("ceilings", f"{PACKAGE}.ceilings", seconds=20, order=5),
    Part("attention", f"{PACKAGE}.attention", seconds=220, order=3),
    Part("step 155m", f"{PACKAGE}.steps", seconds=120, order=2, arguments=("155m",)),
    Part("update", f"{PACKAGE}.update", seconds=20, order=4),
    Part("step 1b", f"{PACKAGE}.steps", seconds=195, order=2, arguments=("1b",)),
    Part("profile", f"{PACKAGE}.profile", seconds=100, order=10),
    Part("pretrain", f"{PACKAGE}.pretrain", seconds=300, order=7),
    Part("tests", f"{PACKAGE}.tests", seconds=240, order=11),
    Part("fp8", f"{PACKAGE}.fp8", seconds=240, order=6),
    Part("step 7b", f"{PACKAGE}.steps", seconds=170, order=2, arguments=("7b",)),
    Part("serving", f"{PACKAGE}.serving", seconds=300, order=8),
    Part("tiles", f"{PACKAGE}.tiles", seconds=300, order=9),
)
