"""The parts of `megatape benchmark gpu` in order of worth: the first ten minutes hold more than half of them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Measurements that share a process.

    Attributes:
        name: beginning of all its keys.
        target: "module:function" that measures, given a Bench (worker.py). The module's function `table` shows the results.
        seconds: expected time on a GPU. The part is stopped after LIMIT times as many.
    """

    name: str
    target: str
    seconds: int

    @property
    def module(self) -> str:
        """Name of the file that measures."""
        return self.target.partition(":")[0].rpartition(".")[2]


LIMIT = 3
PARTS = (
    Part("machine", "megatape.benchmark.machine:machine", 10),
    Part("ceilings", "megatape.benchmark.peak_rates:peak_rates", 20),
    Part("attention", "megatape.benchmark.attention:attention", 120),
    Part("step 155m", "megatape.benchmark.steps:at_155m", 165),
    Part("update", "megatape.benchmark.update:update", 20),
    Part("step 1b", "megatape.benchmark.steps:at_1b", 195),
    Part("profile", "megatape.benchmark.profile:profile", 100),
    Part("tests", "megatape.benchmark.gpu_tests:gpu_tests", 240),
    Part("pretrain", "megatape.benchmark.pretrain:pretrain", 240),
    Part("fp8", "megatape.benchmark.fp8:fp8", 240),
    Part("step 7b", "megatape.benchmark.steps:at_7b", 170),
    Part("serving", "megatape.benchmark.serving:serving", 40),
    Part("precision", "megatape.benchmark.precision:precision", 90),
)
# Modules of parts in the order of their tables.
TABLES = "machine steps attention update peak_rates fp8 pretrain serving precision profile gpu_tests".split()  # noqa: SIM905
