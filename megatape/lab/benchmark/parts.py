"""The parts of `megatape benchmark gpu` in order of worth: the first ten minutes hold more than half of them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Measurements that share a process.

    Attributes:
        name: beginning of all its keys.
        target: "module:function" that measures, given a Bench (worker.py).
        seconds: expected time on a GPU. The part is stopped after LIMIT times as many.
        order: order of its table in table.md.
        table: function of the module that yields the paragraphs with the results.
    """

    name: str
    target: str
    seconds: int
    order: int = 0
    table: str = "table"


LIMIT = 3
PARTS: tuple[Part, ...] = (
    Part("machine", "megatape.lab.benchmark.machine:machine", 10, 1),
    Part("ceilings", "megatape.lab.benchmark.machine:peak_rates", 20, 5, "rates_table"),
    Part("attention", "megatape.lab.benchmark.attention:attention", 220, 3),
    Part("step 155m", "megatape.lab.benchmark.steps:at_155m", 120, 2),
    Part("update", "megatape.lab.benchmark.update:update", 20, 4),
    Part("step 1b", "megatape.lab.benchmark.steps:at_1b", 195, 2),
    Part("profile", "megatape.lab.benchmark.steps:profile", 100, 10, "profile_table"),
    Part("pretrain", "megatape.lab.benchmark.pretrain:pretrain", 300, 7),
    Part("tests", "megatape.lab.benchmark.gpu_tests:gpu_tests", 240, 11),
    Part("fp8", "megatape.lab.benchmark.steps:fp8", 240, 6, "fp8_table"),
    Part("step 7b", "megatape.lab.benchmark.steps:at_7b", 170, 2),
    Part("serving", "megatape.lab.benchmark.serving:serving", 300, 8),
    Part("tiles", "megatape.lab.benchmark.tiles:tiles", 300, 9),
)
