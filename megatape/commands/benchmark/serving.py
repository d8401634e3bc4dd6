"""Compares exported models with a Llama: speed, memory, cache."""

import time
from itertools import product
from typing import Literal

from megatape.commands.cli.output import ParagraphPrinter
from megatape.config import load_config
from megatape.lab.encodings import parse_encodings
from megatape.registry import ENCODINGS
from megatape.utils.values.options import CommandOptions, Count, Listed, option

EXAMPLE = "megatape benchmark serving --lengths 128,1024,3000 --batches 1,8"


class Options(CommandOptions):
    """Models and sizes to measure.

    Attributes:
        config: model configuration (default: the paper's 155M model)
        layers: number of layers (default: the model's)
        encodings: encodings to measure
        lengths: tokens per prompt
        batches: prompts at a time
        padding: pad the first half of every second prompt
        dtype: weight precision
        threads: threads on a CPU
        rounds: timing rounds, after a warm-up round
    """

    config: str | None = option(None, metavar="FILE")
    layers: Count | None = option(None, metavar="N")
    encodings: str = option("tape", metavar="A,B", completions=tuple(ENCODINGS))
    lengths: Listed[Count] = option((128, 1024, 3000), metavar="N,N")
    batches: Listed[Count] = option((1, 8), metavar="B,B")
    padding: Literal["none", "left", "both"] = "both"
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: Count = option(1, metavar="N")
    rounds: Count = option(5, metavar="N")


def run(options: Options) -> None:
    """Print times of exported models and of a Llama for every batch of prompts, as they are measured."""
    # Report errors before importing torch.
    configured = load_config(options.config).model if options.config else None
    encodings = parse_encodings(options.encodings)
    import torch

    from megatape.lab.benchmark.figures.timing import Timer, default_device
    from megatape.lab.benchmark.models.exported import build
    from megatape.lab.benchmark.models.sessions import PromptBatch
    from megatape.lab.benchmark.models.shapes import configured_model
    from megatape.lab.benchmark.serving import report

    paddings = ["none", "left"] if options.padding == "both" else [options.padding]
    prompt_batches = []
    for batch, padding, length in product(options.batches, paddings, options.lengths):
        prompt_batches.append(PromptBatch(batch, padding, length))
    torch.set_num_threads(options.threads)
    device = default_device()
    dtype = getattr(torch, options.dtype)
    model = configured_model(configured, options.layers)
    models = build(model, encodings, max(options.lengths), device, dtype)
    timer = Timer(device, options.rounds, clock=time.process_time)
    report(models, prompt_batches, options.dtype, timer, ParagraphPrinter().print)
