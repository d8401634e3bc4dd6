"""Every numerical bound of the tests: how far two ways to compute one thing may differ, and why no further.

A bound is at least five times the largest difference seen under any of PyTorch's CPU instruction sets
(ATEN_CPU_CAPABILITY=default, avx2, avx512), so that no test is one of a processor, and at most a third of what the named fault
gives, so that the fault is noticed. test_bounds.py in this folder holds the constants to that. To measure again, for each:

    ATEN_CPU_CAPABILITY=avx2 MEGATAPE_RECORD_BOUNDS=seen.jsonl python -m pytest -m numerics
    python -m tests.helpers.checks.bounds seen.jsonl
"""

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

RECORD = "MEGATAPE_RECORD_BOUNDS"


class Seen(NamedTuple):
    """Largest difference under each instruction set, by PyTorch's name for it."""

    default: float
    avx2: float
    avx512: float


class Bound(NamedTuple):
    """Largest difference allowed between two ways to compute one thing.

    Differences are relative to the largest element, unless the bound's comment says otherwise.

    Attributes:
        limit: Largest difference allowed.
        seen: Largest differences measured.
        fault: Fault that, made on purpose, fails all tests using this bound.
        fault_gives: Smallest difference that the fault causes in those tests.
    """

    limit: float
    seen: Seen
    fault: str
    fault_gives: float


# Float32 rounds each operation to 6e-8 of its result, and sums of some hundred products of size 1 in another order differ by
# some of those. Where nothing else is said, that is the reason of a bound. The largest come from sums that cancel.

# One model computed in two ways that must agree: packed documents and each document alone, grouped queries and repeated keys,
# TAPE without updates and RoPE.
LOGITS = Bound(1e-5, Seen(7.7e-7, 1.1e-6, 1.1e-6), "attention scores rounded to bfloat16", 4.7e-4)
# Weight gradients with packed documents: sums over all tokens, partly canceling.
PACKED_GRADIENTS = Bound(
    5e-5, Seen(5.9e-6, 5.8e-6, 5.8e-6), "a backward mask that shows each document the token before it", 2.4e-1
)
# A run in one process and the same run of `pretrain`: gradients of the first step, relative to the norm of each tensor. Both
# compute the same, but one leaves out padding and tokens without a target, so sums have another order.
ONE_PROCESS_GRADIENTS = Bound(6e-6, Seen(1.1e-6, 1.1e-6, 1.1e-6), "one of the targets left out", 2.2e-1)
# Relative difference between losses during the first 20 steps.
ONE_PROCESS_LOSSES = Bound(3e-6, Seen(2.2e-7, 2.2e-7, 2.2e-7), "the learning rate of the next step", 1.1e-2)
# Weights after ten steps, relative to each tensor's norm.
ONE_PROCESS_WEIGHTS = Bound(6e-5, Seen(1.1e-5, 1.1e-5, 1.1e-5), "the learning rate of the next step", 2.1e-2)
# Logits at an offset of 131072 positions. Computing angles in float64 makes the offset itself exact.
OFFSET = Bound(1e-5, Seen(9.2e-7, 1.2e-6, 8.5e-7), "float32 angles: 3e-4, and with YaRN's longer waves", 6.1e-5)
# Position states after each layer, rotated by an offset.
STATES = Bound(5e-6, Seen(2.7e-7, 2.7e-7, 2.7e-7), "position states rounded to bfloat16", 5.5e-3)
# Updating position states, against the equations, which have few operations and no long sums.
UPDATE = Bound(1e-6, Seen(7.1e-8, 4.1e-8, 4.1e-8), "position states rounded to bfloat16", 2.6e-3)
# Cosines and sines against float64. They are rounded once.
ANGLES = Bound(2e-7, Seen(3.0e-8, 3.0e-8, 3.0e-8), "float32 angles at position 131072", 1.1e-3)
# Frequencies against transformers' own, computed in float32.
FREQUENCIES = Bound(2e-6, Seen(3.4e-7, 3.4e-7, 3.4e-7), "an end of YaRN's ramp not rounded", 3.6e-2)
# Biases and products, computed pair by pair, against their published formula in float64.
DEFINITION = Bound(2e-6, Seen(3.1e-7, 2.9e-7, 2.9e-7), "FIRE's 1e-6 as 1e-4", 1.4e-5)

# A backend's values, and gradients with respect to heads and position states, against the formula in float64.
ATTENTION = Bound(3e-5, Seen(2.6e-6, 4.0e-6, 4.0e-6), "scores rounded to bfloat16", 1.6e-3)
# Gradients for a layer's attention weights against its definition in float64. Scores and encodings are in float32.
ENCODING_GRADIENTS = Bound(3e-4, Seen(2.7e-5, 5.5e-5, 5.5e-5), "queries rounded to bfloat16", 6.2e-3)
# Attention on a ring of three ranks against one process: attending to each rank's keys, and merging results.
RING = Bound(4e-5, Seen(6.4e-6, 6.1e-6, 6.1e-6), "keys rounded to bfloat16 on their way", 4.3e-3)
# Attention by the Triton kernels in bfloat16, as relative differences of norms. Arguments and results of every product round to
# 2^-9, and peaked softmax magnifies that. PyTorch's attention is off by 1.4e-2.
KERNELS_BFLOAT16 = Bound(1e-1, Seen(1.6e-2, 1.6e-2, 1.6e-2), "de without the part that comes through queries", 5.4e-1)
# Gradients with respect to a bias's weights: sums over all pairs, partly canceling.
BIAS_GRADIENTS = Bound(2e-4, Seen(2.0e-5, 1.6e-5, 1.6e-5), "gradients of the scores rounded to bfloat16", 7.2e-4)
# Each row in a matrix of attention weights sums to one.
PROBABILITIES = Bound(2e-6, Seen(2.4e-7, 2.4e-7, 2.4e-7), "probabilities rounded to bfloat16", 2.0e-3)

# Products of FP8 layers against float64, as relative differences of norms: operands round to 2^-4, gradients of `tensorwise` to
# 2^-3, and two products follow each other. This and the next two were not seen under avx512, whose column has avx2's.
FP8 = Bound(5e-1, Seen(8.9e-2, 8.9e-2, 8.9e-2), "products not scaled back", 1.2e4)
# Training with FP8 products beside training without: losses during 12 steps, and the first gradient norm.
FP8_LOSSES = Bound(5e-3, Seen(8.1e-4, 8.8e-4, 8.8e-4), "no gradient of what is multiplied by a weight", 1.6e-2)
FP8_NORM = Bound(3e-3, Seen(2.5e-5, 7.1e-5, 7.1e-5), "no gradient of what is multiplied by a weight", 9.1e-2)

# Logits, loss and states against the authors' implementation.
GOLDEN = Bound(1e-5, Seen(1.3e-6, 6.3e-7, 6.3e-7), "position states rounded to bfloat16", 4.1e-4)
# Gradients pass through all layers again; against float64 ours and theirs are off by as much.
GOLDEN_GRADIENTS = Bound(6e-5, Seen(1.1e-5, 7.4e-6, 7.8e-6), "gradients of the scores rounded to bfloat16", 3.4e-4)

# Logits from an exported model, through any cache, against training's, up to eleven layers deep.
EXPORTED = Bound(2e-5, Seen(1.9e-6, 2.7e-6, 2.7e-6), "position states rounded to bfloat16", 1.6e-3)
# Logits from a bfloat16 export, as a share of their variance. Export and training round to 2^-9 in different places.
EXPORTED_BFLOAT16 = Bound(1e-3, Seen(1.6e-4, 1.6e-4, 1.6e-4), "the gain of one layer lost", 1.9e-2)

# PaTH's keys in a bfloat16 model's cache after 400 tokens one by one, against one pass: reflections multiply in another order.
# Where products round differently for one token than for many, keys differ by 2^-8 from the beginning.
REWRITTEN_KEYS = Bound(2e-2, Seen(7.6e-7, 7.6e-7, 7.6e-7), "keys rounded to bfloat16 at each token", 7.9e-2)

# Logits of a model of another family, ours against transformers' own, whose angles are float32: four times as much at 200
# tokens.
IMPORTED = Bound(1e-5, Seen(1.3e-6, 1.1e-6, 1.1e-6), "frequencies that are not scaled", 0.74)

# Loss and gradients in chunks and over vocabulary-parallel ranks, against torch's cross entropy.
CROSS_ENTROPY = Bound(6e-6, Seen(9.4e-7, 1.0e-6, 1.0e-6), "logits rounded to bfloat16", 3.7e-5)
# Loss and gradients by the Triton kernel in bfloat16, as relative differences of norms. Both logits and gradient round to
# 2^-9.
LOSS_BFLOAT16 = Bound(2.5e-2, Seen(4.4e-3, 4.4e-3, 4.4e-3), "the slope of the soft-cap left out", 1.2)
# A gradient summed over 1024 chunks and rounded to bfloat16 once: at most another rounding, 2^-8.
CHUNKS_IN_BFLOAT16 = Bound(2**-8, Seen(0.0, 0.0, 0.0), "the sum rounded at every chunk", 0.45)

# Losses, gradient norms, weights and moments when training on other ranks, stages and micro-batches, after three steps.
TRAINED = Bound(
    1e-5, Seen(1.4e-6, 1.6e-6, 1.2e-6), "a replicated parameter's gradient not summed over tensor-parallel ranks", 4.9e-5
)
# TRAINED for Muon, whose iteration magnifies small singular values, and so their rounding, up to 500 times.
MUON_TRAINED = Bound(2e-5, Seen(2.3e-6, 2.3e-6, 3.3e-6), "matrices orthogonalized in bfloat16", 1.2e-2)
# TRAINED for layouts that cover each pair of settings, and for the moving average. PaTH's Householder products round at every
# token, and the gradients of its projections cancel in part.
LAYOUTS = Bound(
    1.5e-5, Seen(2.2e-6, 6.9e-7, 1.7e-6), "a replicated parameter's gradient not summed over tensor-parallel ranks", 4.9e-5
)
LAYOUTS_PATH = Bound(
    2.5e-4, Seen(4.7e-5, 1.2e-5, 1.2e-5), "a replicated parameter's gradient not summed over tensor-parallel ranks", 1.1e-3
)
LAYOUTS_MUON = Bound(3e-5, Seen(4.2e-6, 1.4e-6, 2.9e-6), "matrices orthogonalized in bfloat16", 1.2e-2)
# A moving average of weights against one computed from the checkpoints: three steps, each rounding once.
EMA = Bound(1e-6, Seen(5.9e-8, 5.9e-8, 5.9e-8), "an average of the weights before each update", 3.3e-1)
# Weights after Muon's steps against torch.optim.Muon, in either precision.
MUON_STEP = Bound(1e-6, Seen(6.2e-8, 6.4e-8, 1.1e-7), "four iterations instead of five", 3.7e-3)
# Losses and gradient norms during 64 steps moving between ranks, against 64 steps staying: rounding grows on the way.
# Seen: the norms, which differ most. default and avx2: one pair of runs on one and on two ranks.
SOAK = Bound(2e-3, Seen(8.0e-6, 1.0e-5, 1.4e-4), "moments that are zero after a resume", 6.2e-2)
# A run's initial weights against those drawn by an earlier version on another processor.
INITIAL = Bound(1e-6, Seen(0.0, 0.0, 0.0), "another seed", 1.0)

# Effect of shifting token ids in the shift study, zero for an equivariant encoding.
SHIFTED = Bound(1e-5, Seen(6.5e-7, 6.5e-7, 6.5e-7), "position states rounded to bfloat16", 1.7e-3)
# A perplexity from float32 logits against float64.
PERPLEXITY = Bound(1e-6, Seen(8.7e-8, 8.7e-8, 8.7e-8), "one token of the text predicted twice", 9.9e-5)
# Dot products between position tensors, stored by a run in float16: rounded once, by at most 2^-11.
POSITION_VIEW = Bound(2.5e-3, Seen(4.4e-4, 4.4e-4, 4.4e-4), "norms of tensor-parallel ranks summed, not averaged", 0.41)
# GPU bounds are at least five times the largest difference seen on an H200.
# A GPU in float32 against the CPU. Seen: 1.9e-5. Rounding factors to 2^-11, TF32 would give 5e-4.
GPU_LOGITS = 1e-4
# Seen: 1.8e-5, but 1.6e-4 for FIRE's two scalars, summing over all pairs.
GPU_GRADIENTS = 1e-4
GPU_SCALAR_GRADIENTS = 1e-3
# CoPE's gradient jumps where rounding moves a position across a whole number. Seen: 2.8e-2 and 2.8e-4.
COPE_GPU_GRADIENTS = {"cope": 1.5e-1, "cope_scaled": 1.5e-3}
# A kernel on a GPU against float64: sums of 300 terms in float32, seen 5.2e-6; in bfloat16 factors and products round to 2^-9,
# and peaked softmax magnifies that, 2.1e-2, PyTorch's kernels 2.0e-2.
GPU_KERNEL = {torch.float32: 3e-5, torch.bfloat16: 1.1e-1}
# Ratio between bfloat16 errors on a GPU and on a CPU, rounding fewer intermediate results. Seen: 1.5.
GPU_OVER_CPU_IN_BFLOAT16 = 8


def all_bounds() -> dict[str, Bound]:
    return {name: value for name, value in globals().items() if isinstance(value, Bound)}


def relative_difference(ours: Tensor, theirs: Tensor, floor: float = 0.0) -> float:
    """Return the largest absolute difference, divided by the largest absolute value in `theirs`, or by `floor` if larger."""
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    difference = (ours.detach() - theirs.detach()).abs().max()
    scale = theirs.detach().abs().max()
    return float(difference / scale.clamp(min=floor))


def assert_close(
    ours: Tensor | Sequence[float], theirs: Tensor | Sequence[float], bound: Bound, *, floor: float = 0.0, what: object = ""
) -> None:
    """Hold the relative difference between two tensors or series of numbers to a bound. A failure shows `what`."""
    assert_within(relative_difference(_tensor(ours), _tensor(theirs), floor), bound, what)


def _tensor(numbers: Tensor | Sequence[float]) -> Tensor:
    return numbers if isinstance(numbers, Tensor) else torch.tensor(numbers, dtype=torch.float64)


def assert_within(difference: float, bound: Bound, what: object = "") -> None:
    """Hold a difference to a bound, and record it where MEGATAPE_RECORD_BOUNDS names a file."""
    name = next(name for name, value in all_bounds().items() if value is bound)
    if file := os.environ.get(RECORD):
        line = {
            "bound": name,
            "difference": difference,
            "capability": capability(),
            "test": os.environ.get("PYTEST_CURRENT_TEST"),
        }
        with open(file, "a") as record:
            record.write(json.dumps(line) + "\n")
    assert difference <= bound.limit, (
        f"{what}: difference {difference:.2g} > {bound.limit:.2g}, bounds.{name} (seen: {max(bound.seen):.2g})"
    )


def capability() -> str:
    """Return the instruction set used by PyTorch's kernels here: default, avx2 or avx512."""
    return torch.backends.cpu.get_cpu_capability().lower()


def main() -> None:
    """Print the largest differences in a record beside each bound."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("record", type=Path)
    largest: dict[tuple[str, str], tuple[float, str]] = defaultdict(lambda: (0.0, ""))
    for line in parser.parse_args().record.read_text().splitlines():
        entry = json.loads(line)
        key = entry["bound"], entry["capability"]
        largest[key] = max(largest[key], (entry["difference"], entry["test"] or ""))
    print(f"{'bound':26}" + "".join(f"{name:>10}" for name in Seen._fields) + f"{'limit':>10}{'fault':>10}  largest in")
    for name, bound in all_bounds().items():
        found = [largest[name, capability] for capability in Seen._fields]
        print(
            f"{name:26}"
            + "".join(f"{value:10.1e}" for value, _ in found)
            + f"{bound.limit:10.1e}{bound.fault_gives:10.1e}  {max(found)[1]}"
        )


if __name__ == "__main__":
    main()
