"""Whether a run in bfloat16 learns as one in float32 does: losses of the same 200 steps, beside those of another seed."""

import sysconfig
from functools import cache, partial
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from megatape.benchmark.bare import BareStep
from megatape.benchmark.child import Bench
from megatape.benchmark.journal import Result
from megatape.benchmark.shapes import Shape, shapes
from megatape.study.efficiency import BASELINE

STEPS, STEPS_TINY = 200, 4
BATCH, LENGTH, BYTES = 8, 512, 256  # tokens are the bytes of Python's own source files
LAST = 20  # steps whose mean loss is compared


def precision(bench: Bench) -> None:
    """Train both encodings."""
    shape = shapes(bench.tiny)["155m"]
    if not bench.tiny:
        shape = Shape(shape.model, BATCH, LENGTH)
    shape = Shape(shape.model.model_copy(update={"vocab_size": BYTES}), shape.batch, shape.length)
    device, steps = torch.device(bench.device), STEPS_TINY if bench.tiny else STEPS
    for encoding in ("tape", BASELINE):
        for name, dtype, seed in (
            ("bfloat16", torch.bfloat16, 0),
            ("float32", torch.float32, 0),
            ("float32, another seed", torch.float32, 1),
        ):
            bench.measure(f"{encoding}/{name}", partial(_trained, shape, encoding, dtype, seed, steps, device))


def _trained(shape: Shape, encoding: str, dtype: torch.dtype, seed: int, steps: int, device: torch.device) -> Result:
    """Another seed draws other weights; the batches are the same."""
    step = BareStep(shape, encoding, device, dtype, seed=seed)
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
