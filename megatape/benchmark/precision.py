"""Whether runs in bfloat16 and in FP8 learn as one in float32 does: losses of the same 200 steps, beside another seed's."""

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
from megatape.config import Fp8Recipe
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
        ways: dict[str, tuple[torch.dtype, int, Fp8Recipe]] = {
            "bfloat16": (torch.bfloat16, 0, "none"),
            "float32": (torch.float32, 0, "none"),
            "float32, another seed": (torch.float32, 1, "none"),
            "FP8 tensorwise": (torch.bfloat16, 0, "tensorwise"),
            "FP8 rowwise": (torch.bfloat16, 0, "rowwise"),
        }
        for name, way in ways.items():
            bench.measure(f"{encoding}/{name}", partial(_trained, shape, encoding, *way, steps, device))


def _trained(
    shape: Shape, encoding: str, dtype: torch.dtype, seed: int, fp8: Fp8Recipe, steps: int, device: torch.device
) -> Result:
    """Another seed draws other weights; the batches are the same."""
    step = BareStep(shape, encoding, device, dtype, seed=seed, fp8=fp8)
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
