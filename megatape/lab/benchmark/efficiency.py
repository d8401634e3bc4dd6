"""Costs of each encoding: counts from the shape, and times measured side by side."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain

import torch

from megatape.accounting.flops import forward_flops
from megatape.config import ActivationCheckpointing, ModelConfig
from megatape.lab.benchmark.cells import milliseconds_cell, ratio_cell
from megatape.lab.benchmark.measured_model import PARTS, TRAINING_PARTS, Cost, MeasuredLlama, prepare
from megatape.lab.benchmark.models import Shape, compute_precision, paper_config
from megatape.lab.benchmark.timing import Timer, describe_device, ratio, spread
from megatape.lab.encodings import BASELINE
from megatape.lab.paper import COST_LAYERS, COST_LENGTH, COSTS, SHAPE
from megatape.utils.tables import markdown
from megatape.utils.units import plural


def report(
    shape: Shape,
    encodings: list[str],
    rounds: int,
    device: torch.device,
    modes: Sequence[ActivationCheckpointing] = (),
    llama: bool = False,
) -> Iterator[str]:
    """Measure encodings, and yield the paragraphs of the report. The baseline is always measured.

    Args:
        shape: Shape of the model and the batch.
        encodings: Names of encodings.
        rounds: Number of timed rounds.
        device: Device to measure.
        modes: Modes of activation checkpointing to measure as well.
        llama: Whether to time training steps of transformers' Llama as well.

    Raises:
        UserError: An encoding does not support the shape.
    """
    yield _check_counts()
    measured_models = prepare(shape, encodings, device, modes)
    yield _describe(shape, rounds, device)
    clock = time.perf_counter
    if torch.get_num_threads() == 1:
        # With one thread, measure CPU time: it does not depend on the load of the machine.
        clock = time.process_time
    timer = Timer(device, rounds, clock=clock)
    in_paper = is_paper_shape(shape.model, shape.length)
    measured_llama = None
    if llama:
        measured_llama = MeasuredLlama(measured_models[BASELINE])

    costs = {name: measured.cost() for name, measured in measured_models.items()}
    yield costs_table(costs, in_paper)
    for part, run in PARTS.items():
        actions: dict[str, Callable[[], object]] = {name: partial(run, measured) for name, measured in measured_models.items()}
        if measured_llama and part in TRAINING_PARTS:
            actions["Llama of transformers"] = partial(TRAINING_PARTS[part], measured_llama)
        seconds = timer.times(actions)
        table = times_table(seconds, part, shape.batch * shape.length, in_paper)
        yield f"{part}:\n\n{table}"


def _check_counts() -> str:
    """Compare our counts for RoPE at the paper's shape with the paper's."""
    flops = forward_flops(paper_config(), COST_LENGTH)
    paper = COSTS[BASELINE]
    return (
        f"RoPE's forward pass at the paper's shape: {flops / 1e9:.2f} G FLOPs and {flops / 2e9:.2f} G MACs here, "
        f"{paper.flops:.2f} and {paper.multiply_adds:.2f} in the paper ({flops / 1e9 / paper.flops - 1:+.2%} FLOPs: we count "
        "matrix products only)."
    )


def _describe(shape: Shape, rounds: int, device: torch.device) -> str:
    """Describe what is measured, where and how."""
    if device.type == "cuda":
        how = "with CUDA events"
    else:
        kind = "wall"
        if torch.get_num_threads() == 1:
            kind = "processor"
        how = f"in {kind} time (CPU times say little about GPU times)"
    return (
        f"{plural(shape.model.num_layers, 'layer')} of width {shape.model.hidden_size}, N {shape.length}, batch {shape.batch}, "
        f"{compute_precision(device)} on {describe_device(device)}; {rounds} rounds over the encodings, "
        f"timed {how}: medians, quartiles in parentheses, ratios to {BASELINE} in the same round."
    )


def is_paper_shape(config: ModelConfig, length: int) -> bool:
    """Whether the paper's numbers are for this model and length."""
    shape = {key: getattr(config, key) for key in SHAPE}
    return shape == SHAPE and config.num_layers == COST_LAYERS and length == COST_LENGTH


def costs_table(costs: dict[str, Cost], in_paper: bool) -> str:
    """Return the table of counts.

    Args:
        costs: Counts by name.
        in_paper: Whether to add the paper's counts, which are for one shape.
    """
    baseline = costs[BASELINE]
    rows = []
    for name, cost in costs.items():
        counts = [f"{cost.parameters / 2**20:.2f}", f"{cost.flops / 1e9:.2f}", f"{cost.flops / 2e9:.2f}"]
        if in_paper:
            counts = _interleave(counts, _paper_counts(name))
        rows.append(
            [
                f"`{name}`",
                *counts,
                f"{cost.saved / 2**20:.1f}",
                ratio_cell(cost.saved / baseline.saved, 3),
                f"{cost.saved_blocks / 2**20:.1f}",
                ratio_cell(cost.saved_blocks / baseline.saved_blocks, 3),
            ]
        )
    columns = ["parameters, 2^20", "forward, G FLOPs", "G MACs"]
    if in_paper:
        columns = _interleave(columns, ["paper"] * len(columns))
    return markdown(["", *columns, "activations, MiB", "ratio", "of blocks, MiB", "ratio"], rows)


def _paper_counts(name: str) -> list[str]:
    """Return the paper's parameters, FLOPs and multiply-adds of an encoding, empty if it has none."""
    paper = COSTS.get(name)
    if paper is None:
        return ["", "", ""]
    return [f"{paper.parameters:.2f}", f"{paper.flops:.2f}", f"{paper.multiply_adds:.2f}"]


def _interleave(first: list[str], second: list[str]) -> list[str]:
    """Return the items of two lists in turn."""
    return list(chain.from_iterable(zip(first, second, strict=True)))


def times_table(seconds: dict[str, list[float]], part: str, num_tokens: int, in_paper: bool) -> str:
    """Return the table of the times of a part.

    Args:
        seconds: Seconds of every round by name.
        part: Name of the part.
        num_tokens: Number of tokens in the batch.
        in_paper: Whether to add the paper's times, which are for an attention layer of one shape.
    """
    header = ["", "ms", "ratio", "tokens/s"]
    has_paper_times = in_paper and part == "attention layer"
    if has_paper_times:
        header += ["paper, ms", "ratio"]
    rows = []
    for name, taken in seconds.items():
        own = spread(taken)
        over_baseline = ratio(taken, seconds[BASELINE])
        row = [
            f"`{name}`",
            milliseconds_cell(own),
            ratio_cell(over_baseline, 3),
            f"{num_tokens / own.median:,.0f}",
        ]
        if has_paper_times:
            row += _paper_times(name)
        rows.append(row)
    return markdown(header, rows)


def _paper_times(name: str) -> list[str]:
    """Return the paper's time of an encoding and its ratio to the baseline's, empty if it has none."""
    paper = COSTS.get(name)
    if paper is None:
        return ["", ""]
    baseline = COSTS[BASELINE]
    return [f"{paper.attention_seconds * 1e3:.3f}", ratio_cell(paper.attention_seconds / baseline.attention_seconds)]
