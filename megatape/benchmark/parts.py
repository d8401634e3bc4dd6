"""The parts of `megatape benchmark gpu`, those first that are worth most: ten minutes hold more than half of them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Measurements that share a process.

    name: with which all its keys begin. target: "module:function" that measures, given a Bench (child.py). seconds: that it is
    expected to take on a GPU; it is stopped after LIMIT times as many.
    """

    name: str
    target: str
    seconds: int


LIMIT = 3
PARTS = (
    Part("machine", "megatape.benchmark.machine:machine", 10),
    Part("ceilings", "megatape.benchmark.ceilings:ceilings", 20),
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
