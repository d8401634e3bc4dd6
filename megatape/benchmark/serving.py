"""Prompts and decoding of an exported TAPE model beside transformers' Llama of the same shape, as `megatape study serving`."""

from collections.abc import Callable
from functools import cache, partial

import torch
from transformers import PreTrainedModel

from megatape.benchmark.child import Bench
from megatape.benchmark.clock import Clock, clock_of, median, ratio
from megatape.benchmark.journal import Result
from megatape.benchmark.shapes import Shape, shapes
from megatape.study.efficiency import compute_dtype
from megatape.study.serving import BASELINE, STEPS, Cell, Decoder, build, read

CELLS = {"155m": ((1, 128), (1, 4096), (32, 1024)), "1b": ((1, 2048), (16, 2048))}  # batch, tokens
CELLS_TINY = {"155m": ((2, 24),)}


def serving(bench: Bench) -> None:
    """Measure all cells of a shape, then those of the next."""
    clock = clock_of(bench)
    for name, cells in (CELLS_TINY if bench.tiny else CELLS).items():
        longest = max(length for _, length in cells)
        models = cache(partial(_models, shapes(bench.tiny)[name], longest, clock.device))
        for cell in cells:
            bench.measure(f"{name}/{cell[0]} x {cell[1]}", partial(_compared, clock, models, *cell))


def _models(shape: Shape, longest: int, device: torch.device) -> dict[str, PreTrainedModel]:
    return build(shape.model, ["tape"], longest, device, compute_dtype(device))


def _compared(clock: Clock, build_once: Callable[[], dict[str, PreTrainedModel]], batch: int, length: int) -> Result:
    models = build_once()
    prompt = Cell(batch, "none", length).prompt(models[BASELINE].config.vocab_size, clock.device)
    reading = clock.times({name: partial(read, model, prompt) for name, model in models.items()})
    # Not repeated within a round: every call makes the cache longer.
    one_by_one = Clock(clock.device, clock.rounds, 0.0)
    decoding = one_by_one.times({name: Decoder(model, prompt) for name, model in models.items()})
    return {
        "prompt": {"seconds": median(reading["tape"]), "ratio": ratio(reading["tape"], reading[BASELINE])},
        "token": {"seconds": median(decoding["tape"]) / STEPS, "ratio": ratio(decoding["tape"], decoding[BASELINE])},
    }
