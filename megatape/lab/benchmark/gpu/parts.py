"""Parts of `megatape benchmark gpu`, the most useful first."""

from dataclasses import dataclass

# A part is stopped after this multiple of its expected time.
TIME_LIMIT = 3


@dataclass(frozen=True)
class Part:
    """Measurements that share a process.

    Attributes:
        name: Beginning of all keys of the part.
        target: `MODULE:FUNCTION` that measures. It takes a Bench (worker.py).
        seconds: Expected seconds on a GPU.
        order: Position of the part's table in table.md.
        table: `MODULE:FUNCTION` that yields the paragraphs with the results. By default `table` of the target's module.
    """

    name: str
    target: str
    seconds: int
    order: int = 0
    table: str = ""

    @property
    def table_target(self) -> str:
        """`MODULE:FUNCTION` that yields the paragraphs with the results."""
        if self.table:
            return self.table
        module, _, _ = self.target.partition(":")
        return f"{module}:table"


PARTS: tuple[Part, ...] = (
    Part("machine", "megatape.lab.benchmark.gpu.machine:machine", 10, 1),
    Part("ceilings", "megatape.lab.benchmark.gpu.machine:peak_rates", 20, 5, "megatape.lab.benchmark.gpu.machine:rates_table"),
    Part("attention", "megatape.lab.benchmark.gpu.attention:attention", 220, 3),
    Part("step 155m", "megatape.lab.benchmark.gpu.steps:at_155m", 120, 2, "megatape.lab.benchmark.gpu.step_tables:table"),
    Part("update", "megatape.lab.benchmark.gpu.update:update", 20, 4),
    Part("step 1b", "megatape.lab.benchmark.gpu.steps:at_1b", 195, 2, "megatape.lab.benchmark.gpu.step_tables:table"),
    Part("profile", "megatape.lab.benchmark.gpu.profile:profile", 100, 10),
    Part("pretrain", "megatape.lab.benchmark.pretrain:pretrain", 300, 7),
    Part("tests", "megatape.lab.benchmark.gpu.gpu_tests:gpu_tests", 240, 11),
    Part("fp8", "megatape.lab.benchmark.gpu.fp8:fp8", 240, 6),
    Part("step 7b", "megatape.lab.benchmark.gpu.steps:at_7b", 170, 2, "megatape.lab.benchmark.gpu.step_tables:table"),
    Part("serving", "megatape.lab.benchmark.gpu.serving:serving", 300, 8),
    Part("tiles", "megatape.lab.benchmark.gpu.tiles:tiles", 300, 9),
)
