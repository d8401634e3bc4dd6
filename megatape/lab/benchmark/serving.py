"""Speed and memory of exported models against a Llama of the same shape, with dynamic caches."""

from collections.abc import Iterator
from functools import partial

import torch
from transformers import PreTrainedModel

from megatape.lab.benchmark.cells import ratio_cell
from megatape.lab.benchmark.exported import LLAMA
from megatape.lab.benchmark.gpu.serving import times_beside_llama
from megatape.lab.benchmark.peak_memory import peak_memory
from megatape.lab.benchmark.sessions import NUM_DECODED, Decoder, Workload, read
from megatape.lab.benchmark.timing import Timer
from megatape.utils.tables import markdown
from megatape.utils.units import plural


def report(
    models: dict[str, PreTrainedModel],
    workloads: list[Workload],
    dtype: str,
    timer: Timer,
) -> Iterator[str]:
    """Measure models, and yield the paragraphs of the report: the cache, then a table for each workload.

    Args:
        models: Models of one shape by name, the Llama among them.
        workloads: Batches of prompts.
        dtype: Precision of the weights.
        timer: Times actions on the device.
    """
    shape = models[LLAMA].config
    device = timer.device
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
        how = "times between CUDA events"
    else:
        where = f"a CPU, {torch.get_num_threads()} threads"
        how = "CPU time, of all threads"
    yield (
        f"{plural(shape.num_hidden_layers, 'layer')} of width {shape.hidden_size}, {dtype} on {where}; medians of "
        f"{timer.rounds} rounds over the models ({how}); ratios to {LLAMA}'s in the same round."
    )
    yield cache_table(models, device)
    header = ["prompts", "", "prompt, ms", "ratio", "KiB a token", f"token of {NUM_DECODED}, ms", "ratio"]
    for workload in workloads:
        yield markdown(header, _rows(models, workload, timer))


def cache_table(models: dict[str, PreTrainedModel], device: torch.device) -> str:
    """Return the table of bytes that the cache holds for a token."""
    workload = Workload(1, "none", 2)
    rows = []
    for name, model in models.items():
        prompt = workload.prompt(model.config.vocab_size, device)
        layers = read(model, prompt).past_key_values.layers
        keys = sum(layer.keys.nbytes for layer in layers) // workload.length
        values = sum(layer.values.nbytes for layer in layers) // workload.length
        rows.append([name, f"{keys:,}", f"{values:,}", f"{keys + values:,}"])
    return markdown(["cache, bytes a token", "keys", "values", "both"], rows)


def _rows(models: dict[str, PreTrainedModel], workload: Workload, timer: Timer) -> list[list[str]]:
    """Return a row for each model: reading the prompts, with its peak memory, and decoding after them."""
    prompt = workload.prompt(models[LLAMA].config.vocab_size, timer.device)
    num_tokens = workload.batch * workload.length
    memory = {name: peak_memory(model, prompt) / num_tokens for name, model in models.items()}
    reading = timer.times({name: partial(read, model, prompt) for name, model in models.items()})
    decoding = timer.times({name: Decoder(model, prompt) for name, model in models.items()})
    rows = []
    for name, result in times_beside_llama(reading, decoding).items():
        rows.append(
            [
                str(workload),
                name,
                f"{result.prompt.seconds * 1e3:,.0f}",
                ratio_cell(result.prompt.ratio),
                f"{memory[name] / 1024:,.0f}",
                f"{result.token.seconds * 1e3:,.1f}",
                ratio_cell(result.token.ratio),
            ]
        )
    return rows
