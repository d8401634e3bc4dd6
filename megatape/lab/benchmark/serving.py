"""Exported models with dynamic caches, compared with a Llama: speed and memory."""

from dataclasses import dataclass
from functools import partial

import torch
from transformers import PreTrainedModel

from megatape.lab.benchmark.figures.cells import ratio_cell
from megatape.lab.benchmark.figures.timing import Timer, describe_device
from megatape.lab.benchmark.models.exported import LLAMA
from megatape.lab.benchmark.models.sessions import (
    NUM_DECODED,
    Decoder,
    PromptBatch,
    ServingResult,
    peak_memory,
    read,
    times_beside_llama,
)
from megatape.utils.text.paragraphs import Show
from megatape.utils.text.tables import markdown
from megatape.utils.text.units import plural


@dataclass(frozen=True)
class CacheBytes:
    """Cache size per token: key bytes and value bytes, over all layers."""

    keys: int
    values: int


@dataclass(frozen=True)
class ServingFigures:
    """A model's times, and its peak bytes per prompt token while reading the prompts."""

    times: ServingResult
    bytes_per_token: float


def report(
    models: dict[str, PreTrainedModel],
    prompt_batches: list[PromptBatch],
    dtype: str,
    timer: Timer,
    show: Show,
) -> None:
    """Measure models, and show paragraphs about the cache, then about each batch of prompts.

    Args:
        models: Models by name, including the Llama.
        prompt_batches: Batches of prompts.
        dtype: Weight precision.
        timer: Timer for the device.
        show: Called with each paragraph as soon as it is known.
    """
    shape = models[LLAMA].config
    device = timer.device
    how = "CPU time, of all threads"
    if device.type == "cuda":
        how = "times between CUDA events"
    layers = plural(shape.num_hidden_layers, "layer")
    show(
        f"{layers} of width {shape.hidden_size}, {dtype} on {describe_device(device)}; medians of "
        f"{timer.rounds} rounds over the models ({how}); ratios to {LLAMA}'s in the same round."
    )
    show(cache_table(measure_cache(models, device)))
    for prompt_batch in prompt_batches:
        show(prompt_batch_table(prompt_batch, measure(models, prompt_batch, timer)))


def measure_cache(models: dict[str, PreTrainedModel], device: torch.device) -> dict[str, CacheBytes]:
    """Return each model's cache size per token."""
    prompt_batch = PromptBatch(1, "none", 2)
    caches = {}
    for name, model in models.items():
        prompt = prompt_batch.prompt(model.config.vocab_size, device)
        layers = read(model, prompt).past_key_values.layers
        keys = sum(layer.keys.nbytes for layer in layers) // prompt_batch.length
        values = sum(layer.values.nbytes for layer in layers) // prompt_batch.length
        caches[name] = CacheBytes(keys, values)
    return caches


def cache_table(caches: dict[str, CacheBytes]) -> str:
    """Return a table with a row per model."""
    rows = []
    for name, cache in caches.items():
        rows.append([name, f"{cache.keys:,}", f"{cache.values:,}", f"{cache.keys + cache.values:,}"])
    return markdown(["cache, bytes per token", "keys", "values", "both"], rows)


def measure(models: dict[str, PreTrainedModel], prompt_batch: PromptBatch, timer: Timer) -> dict[str, ServingFigures]:
    """Measure each model's peak memory while reading prompts, and its reading and decoding times."""
    prompt = prompt_batch.prompt(models[LLAMA].config.vocab_size, timer.device)
    num_tokens = prompt_batch.batch * prompt_batch.length
    memory = {name: peak_memory(model, prompt) / num_tokens for name, model in models.items()}
    reading = timer.times({name: partial(read, model, prompt) for name, model in models.items()})
    decoding = timer.times({name: Decoder(model, prompt) for name, model in models.items()})
    times = times_beside_llama(reading, decoding)
    return {name: ServingFigures(times[name], memory[name]) for name in models}


def prompt_batch_table(prompt_batch: PromptBatch, results: dict[str, ServingFigures]) -> str:
    """Return a table with a row per model."""
    rows = []
    for name, result in results.items():
        prompt = result.times.prompt
        token = result.times.token
        rows.append(
            [
                str(prompt_batch),
                name,
                f"{prompt.seconds * 1e3:,.0f}",
                ratio_cell(prompt.ratio),
                f"{result.bytes_per_token / 1024:,.0f}",
                f"{token.seconds * 1e3:,.1f}",
                ratio_cell(token.ratio),
            ]
        )
    header = ["prompts", "", "prompt, ms", "ratio", "KiB per token", f"token of {NUM_DECODED}, ms", "ratio"]
    return markdown(header, rows)
