"""Exported TAPE, compared with a Llama of the same shape, with static caches: reading prompts and decoding token by token."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from statistics import median

import torch
from transformers import PreTrainedModel

from megatape.lab.benchmark.cells import ratio_cell
from megatape.lab.benchmark.exported import LLAMA, build
from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.results import Measurement, Results, Times
from megatape.lab.benchmark.gpu.tables import label, measurements, titled
from megatape.lab.benchmark.models import compute_dtype, shapes
from megatape.lab.benchmark.sessions import NUM_DECODED, StaticSession, Workload
from megatape.lab.benchmark.timing import Timer, ratio
from megatape.utils.units import format_milliseconds

# Shape -> batches and prompt lengths. torch.compile makes four graphs for each.
WORKLOADS = {"155m": [(1, 128), (32, 1024)], "1b": [(1, 2048)]}
TINY_WORKLOADS = {"155m": [(2, 24)]}


class ServingResult(Measurement):
    """Times of a model, compared with the Llama.

    Attributes:
        prompt: Reading the prompts.
        token: Decoding a token.
    """

    prompt: Times
    token: Times


def measure(bench: Bench) -> None:
    """Measure TAPE with every workload."""
    device = bench.timer.device
    workloads = WORKLOADS
    if bench.tiny:
        workloads = TINY_WORKLOADS
    for name, sizes in workloads.items():
        model = shapes(bench.tiny)[name].model
        max_length = max(length for _, length in sizes)
        # Build the models only if a workload has no result yet.
        build_once = cache(partial(build, model, ["tape"], max_length, device, compute_dtype(device)))
        for batch, length in sizes:
            workload = Workload(batch, "none", length)
            bench.measure((name, f"{batch} x {length}"), partial(_measure_workload, bench.timer, build_once, workload))


def _measure_workload(timer: Timer, build_once: Callable[[], dict[str, PreTrainedModel]], workload: Workload) -> ServingResult:
    """Time TAPE beside the Llama."""
    # Free the memory of earlier graphs.
    torch.compiler.reset()
    models = build_once()
    prompt = workload.prompt(models[LLAMA].config.vocab_size, timer.device)
    sessions = {name: StaticSession(model, prompt) for name, model in models.items()}
    reading = timer.times({name: session.read for name, session in sessions.items()})
    decoding = timer.times({name: session.decode for name, session in sessions.items()})
    return times_beside_llama(reading, decoding)["tape"]


def times_beside_llama(reading: dict[str, list[float]], decoding: dict[str, list[float]]) -> dict[str, ServingResult]:
    """Return the median times of each model, and their ratios to the Llama's in the same round.

    Args:
        reading: Model name -> seconds per round for reading the prompts.
        decoding: Model name -> seconds per round for decoding NUM_DECODED tokens.
    """
    results = {}
    for name, seconds in reading.items():
        decoding_seconds = decoding[name]
        prompt = Times(seconds=median(seconds), ratio=ratio(seconds, reading[LLAMA]).median)
        token = Times(
            seconds=median(decoding_seconds) / NUM_DECODED,
            ratio=ratio(decoding_seconds, decoding[LLAMA]).median,
        )
        results[name] = ServingResult(prompt=prompt, token=token)
    return results


def table(results: Results) -> Iterator[str]:
    """Yield a table with a row for each shape and batch of prompts."""
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
