"""Exported TAPE with static caches, reading prompts and decoding token by token, compared with a Llama."""

from collections.abc import Callable, Iterator
from functools import cache, partial

import torch
from transformers import PreTrainedModel

from megatape.lab.benchmark.figures.cells import ratio_cell
from megatape.lab.benchmark.figures.timing import Timer
from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.results import Results
from megatape.lab.benchmark.gpu.tables import label, measurements, titled
from megatape.lab.benchmark.models.exported import LLAMA, build
from megatape.lab.benchmark.models.sessions import PromptBatch, ServingResult, StaticSession, times_beside_llama
from megatape.lab.benchmark.models.shapes import compute_dtype, shapes
from megatape.utils.text.units import format_milliseconds

# Shape -> batches and prompt lengths. torch.compile makes four graphs for each.
PROMPT_BATCHES = {"155m": [(1, 128), (32, 1024)], "1b": [(1, 2048)]}
TINY_PROMPT_BATCHES = {"155m": [(2, 24)]}


def measure(bench: Bench) -> None:
    """Measure TAPE with every batch of prompts."""
    device = bench.timer.device
    prompt_batches = PROMPT_BATCHES
    if bench.tiny:
        prompt_batches = TINY_PROMPT_BATCHES
    for name, sizes in prompt_batches.items():
        model = shapes(bench.tiny)[name].model
        max_length = max(length for _, length in sizes)
        # Build the models only if a batch of prompts has no result yet.
        build_once = cache(partial(build, model, ["tape"], max_length, device, compute_dtype(device)))
        for batch, length in sizes:
            prompt_batch = PromptBatch(batch, "none", length)
            bench.measure((name, f"{batch} x {length}"), partial(_measure_prompt_batch, bench.timer, build_once, prompt_batch))


def _measure_prompt_batch(
    timer: Timer, build_once: Callable[[], dict[str, PreTrainedModel]], prompt_batch: PromptBatch
) -> ServingResult:
    # Free the memory that earlier graphs hold.
    torch.compiler.reset()
    models = build_once()
    prompt = prompt_batch.prompt(models[LLAMA].config.vocab_size, timer.device)
    sessions = {name: StaticSession(model, prompt) for name, model in models.items()}
    reading = timer.times({name: session.read for name, session in sessions.items()})
    decoding = timer.times({name: session.decode for name, session in sessions.items()})
    return times_beside_llama(reading, decoding)["tape"]


def table(results: Results) -> Iterator[str]:
    """Yield a table with a row per batch of prompts."""
    rows = []
    for name, result in measurements(results, "serving", label, ServingResult):
        rows.append(
            [
                name,
                format_milliseconds(result.prompt.seconds),
                ratio_cell(result.prompt.ratio),
                format_milliseconds(result.token.seconds),
                ratio_cell(result.token.ratio),
            ]
        )
    header = ["prompts", "prompt, ms", "over Llama", "token, ms", "over Llama"]
    yield from titled("Exported TAPE", header, rows)
