"""Low precision against float32: the losses of the same 200 steps in bfloat16, FP8 and float32, and another seed's."""

import sysconfig
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from megatape.benchmark.encodings import BASELINE
from megatape.benchmark.models import RawStep, Shape, shapes
from megatape.benchmark.results import Result, Results, rows_of, titled
from megatape.benchmark.worker import Bench

STEPS, STEPS_TINY = 200, 4
BATCH, LENGTH, BYTES = 8, 512, 256  # tokens are the bytes of Python's own source files
LAST = 20  # steps whose mean loss is compared


def precision(bench: Bench) -> None:
    """Train both encodings."""
    shape = shapes(bench.tiny)["155m"]
    batch, length = (shape.batch, shape.length) if bench.tiny else (BATCH, LENGTH)
    shape = Shape(shape.model.model_copy(update={"vocab_size": BYTES}), batch, length)
    device, steps = torch.device(bench.device), STEPS_TINY if bench.tiny else STEPS
    for encoding in ("tape", BASELINE):
        ways = {
            "bfloat16": ("bfloat16", 0, "none"),
            "float32": ("float32", 0, "none"),
            "float32, another seed": ("float32", 1, "none"),
            "FP8 tensorwise": ("bfloat16", 0, "tensorwise"),
            "FP8 rowwise": ("bfloat16", 0, "rowwise"),
        }
        for name, way in ways.items():
            bench.measure(f"{encoding}/{name}", partial(_trained, shape, encoding, *way, steps, device))


def _trained(shape: Shape, encoding: str, precision: str, seed: int, fp8: str, steps: int, device: torch.device) -> Result:
    """Another seed draws other weights; the batches are the same."""
    step = RawStep(shape.config(encoding, precision, fp8=fp8), device, seed)
    text, generator = _text(device), torch.Generator().manual_seed(0)
    window = torch.arange(shape.length + 1, device=device)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(text) - shape.length, (shape.batch, 1), generator=generator).to(device)
        loss = step.loss(text[starts + window].long())
        loss.backward()
        step.update()
        losses.append(loss.detach())
    curve = torch.stack(losses).tolist()
    return {"last losses": fmean(curve[-LAST:]), "losses": [round(loss, 5) for loss in curve[:: max(1, steps // 20)]]}


@cache
def _text(device: torch.device) -> Tensor:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8).to(device)


def table(results: Results) -> Iterator[str]:
    """A table with a row for each encoding and precision."""
    rows = [[*words, f"{r['last losses']:.4f}"] for words, r in rows_of(results, "precision")]
    yield from titled("Mean loss of the last of 200 steps", ["", "", "nats"], rows)
