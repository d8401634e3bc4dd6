"""The parts of `megatape benchmark gpu`, those first that are worth most: ten minutes hold more than half of them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Measurements that share a process.

    name: with which all its keys begin. target: "module:function" that measures, given a Bench (child.py). seconds: that it is
    expected to take on a GPU; it is stopped after LIMIT times as many."""

    name: str
    description: str
    target: str
    seconds: int


LIMIT = 3
PARTS = (
    Part("machine", "versions and device", "megatape.benchmark.machine:machine", 10),
    Part("ceilings", "bandwidth of copies, rates of matrix products", "megatape.benchmark.ceilings:ceilings", 20),
    Part("attention", "attention backends side by side", "megatape.benchmark.attention:attention", 100),
    Part("step 155m", "training steps of the 155M shape", "megatape.benchmark.steps:at_155m", 70),
    Part("step 1b", "training steps of the 1B shape", "megatape.benchmark.steps:at_1b", 100),
    Part("update", "position update and rotation", "megatape.benchmark.update:update", 30),
    Part("tests", "tests marked gpu", "megatape.benchmark.gpu_tests:gpu_tests", 150),
    Part("profile", "kernels and gaps of a training step", "megatape.benchmark.profile:profile", 40),
    Part("pretrain", "megatape pretrain against the bare step", "megatape.benchmark.pretrain:pretrain", 150),
    Part("step 7b", "training steps of blocks of the 7B shape", "megatape.benchmark.steps:at_7b", 120),
    Part("serving", "prompts and decoding of exported models", "megatape.benchmark.serving:serving", 40),
    Part("precision", "200 steps in bfloat16 and in float32", "megatape.benchmark.precision:precision", 90),
)
