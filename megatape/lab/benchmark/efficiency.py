"""Costs of each encoding compared with RoPE: parameters, FLOPs, activations and time."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

import torch

from megatape.accounting.whole_model.flops import forward_flops
from megatape.config import ActivationCheckpointing, ModelConfig
from megatape.lab.benchmark.figures.cells import milliseconds_cell, ratio_cell
from megatape.lab.benchmark.figures.timing import Timer, describe_device, ratio, spread
from megatape.lab.benchmark.models.compared_models import LLAMA, ROPE, ModelName, build_models
from megatape.lab.benchmark.models.measured_model import MeasuredLlama, MeasuredModel, ModelCost
from megatape.lab.benchmark.models.measured_parts import ATTENTION_LAYER, PARTS, MeasuredPart
from megatape.lab.benchmark.models.shapes import ModelShape, compute_precision, paper_config
from megatape.lab.encodings import BASELINE
from megatape.lab.paper import COST_LAYERS, COST_LENGTH, COSTS, SHAPE
from megatape.utils.text.paragraphs import Show
from megatape.utils.text.tables import markdown
from megatape.utils.text.units import plural


def report(
    shape: ModelShape,
    encodings: list[str],
    rounds: int,
    device: torch.device,
    show: Show,
    modes: Sequence[ActivationCheckpointing] = (),
    llama: bool = False,
) -> None:
    """Measure encodings and RoPE, and show the results.

    Args:
        shape: Model and batch.
        encodings: Encoding names.
        rounds: Timed rounds.
        device: Device to run on.
        show: Called with each paragraph as soon as it is known.
        modes: Activation checkpointing modes to measure besides "none".
        llama: Whether to time training steps with transformers' Llama, too.

    Raises:
        UserError: An encoding does not support the shape.
    """
    show(_compare_counts())
    measured_models = build_models(shape, encodings, device, modes)
    show(_describe(shape, rounds, device))
    clock = time.perf_counter
    if torch.get_num_threads() == 1:
        # CPU time does not depend on the machine's load, but adds up over threads.
        clock = time.process_time
    timer = Timer(device, rounds, clock=clock)
    in_paper = is_paper_shape(shape.model, shape.length)
    measured_llama = None
    if llama:
        measured_llama = MeasuredLlama(measured_models[ROPE])

    costs = {name: measured.cost() for name, measured in measured_models.items()}
    show(costs_table(costs, in_paper))
    for part in PARTS:
        seconds = _measure_part(timer, part, measured_models, measured_llama)
        table = times_table(seconds, shape.batch * shape.length, in_paper and part is ATTENTION_LAYER)
        show(f"{part.title}:\n\n{table}")


def _measure_part(
    timer: Timer,
    part: MeasuredPart,
    models: dict[ModelName, MeasuredModel],
    llama: MeasuredLlama | None,
) -> dict[ModelName, list[float]]:
    actions: dict[ModelName, Callable[[], object]] = {name: partial(part.run, model) for name, model in models.items()}
    if llama is not None and part.run_llama is not None:
        actions[LLAMA] = partial(part.run_llama, llama)
    return timer.times(actions)


def _compare_counts() -> str:
    """Compare RoPE's counts at the paper's shape with the paper's."""
    flops = forward_flops(paper_config(), COST_LENGTH)
    paper = COSTS[BASELINE]
    return (
        f"RoPE's forward pass at the paper's shape: {flops / 1e9:.2f} G FLOPs and {flops / 2e9:.2f} G MACs here, "
        f"{paper.flops:.2f} and {paper.multiply_adds:.2f} in the paper ({flops / 1e9 / paper.flops - 1:+.2%} FLOPs: we count "
        "matrix products only)."
    )


def _describe(shape: ModelShape, rounds: int, device: torch.device) -> str:
    if device.type == "cuda":
        how = "with CUDA events"
    else:
        kind = "processor" if torch.get_num_threads() == 1 else "wall"
        how = f"in {kind} time (CPU times say little about GPU times)"
    return (
        f"{plural(shape.model.num_layers, 'layer')} of width {shape.model.hidden_size}, N {shape.length}, batch {shape.batch}, "
        f"{compute_precision(device)} on {describe_device(device)}; {rounds} rounds over the encodings, "
        f"timed {how}: medians, quartiles in parentheses, ratios to {BASELINE} in the same round."
    )


def is_paper_shape(config: ModelConfig, length: int) -> bool:
    """Whether the paper has numbers for this model and length."""
    shape = {key: getattr(config, key) for key in SHAPE}
    return shape == SHAPE and config.num_layers == COST_LAYERS and length == COST_LENGTH


def costs_table(costs: dict[ModelName, ModelCost], in_paper: bool) -> str:
    """Return a table with a row per model. `in_paper` adds the paper's counts."""
    baseline = costs[ROPE]
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


def _paper_counts(name: ModelName) -> list[str]:
    """Return the paper's cells, empty if it has none."""
    paper = COSTS.get(str(name))
    if paper is None:
        return ["", "", ""]
    return [f"{paper.parameters:.2f}", f"{paper.flops:.2f}", f"{paper.multiply_adds:.2f}"]


def _interleave(first: list[str], second: list[str]) -> list[str]:
    return list(chain.from_iterable(zip(first, second, strict=True)))


def times_table(seconds: dict[ModelName, list[float]], num_tokens: int, in_paper: bool) -> str:
    """Return a table with a row per model. `in_paper` adds the paper's times."""
    header = ["", "ms", "ratio", "tokens/s"]
    if in_paper:
        header += ["paper, ms", "ratio"]
    rows = []
    for name, round_seconds in seconds.items():
        duration = spread(round_seconds)
        over_baseline = ratio(round_seconds, seconds[ROPE])
        row = [
            f"`{name}`",
            milliseconds_cell(duration),
            ratio_cell(over_baseline, 3),
            f"{num_tokens / duration.median:,.0f}",
        ]
        if in_paper:
            row += _paper_times(name)
        rows.append(row)
    return markdown(header, rows)


def _paper_times(name: ModelName) -> list[str]:
    """Return the paper's cells, empty if it has none."""
    paper = COSTS.get(str(name))
    if paper is None:
        return ["", ""]
    baseline = COSTS[BASELINE]
    return [f"{paper.attention_seconds * 1e3:.3f}", ratio_cell(paper.attention_seconds / baseline.attention_seconds)]
