"""What a run would need, told without building anything large."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from megatape.config import Config
from megatape.model.accounting import count_parameters, forward_flops, saved_bytes
from megatape.model.transformer import Transformer
from megatape.parallel.collectives import TensorRanks


def describe(config: Config, world_size: int) -> str:
    """Readable account of parameters, floating-point operations and bytes per rank for `world_size` ranks.

    Raises ValueError if the batch does not divide among the ranks."""
    accumulation = config.accumulation(world_size)
    model, training, stage = config.model, config.training, config.zero.stage
    length = config.data.sequence_length
    count = count_parameters(model)
    flops = forward_flops(model, length)
    bytes_per_weight = 2 if training.precision == "bfloat16" else 4
    data_ranks, tensor_ranks = config.data_ranks(world_size), config.parallel.tp
    split = {part: data_ranks if stage >= first else 1 for part, first in (("weights", 3), ("gradients", 2), ("state", 1))}
    with FakeTensorMode(), _default_dtype(getattr(torch, training.precision)):
        share = Transformer(model, training.activation_checkpointing, TensorRanks(tensor_ranks))
        held = sum(parameter.numel() for parameter in share.parameters())
        activations = saved_bytes(share, training.micro_batch_size, length, config.data.mask_documents)
    tokens = training.global_batch_size * length
    rows = [
        ("parameters", f"{count.total:,} = {count.total / 2**20:.2f} x 2^20"),
        ("  embedding and head", f"{count.embedding:,}"),
        ("  position encoding", f"{count.position:,}"),
        ("forward FLOPs per sequence", f"{flops / 1e9:,.2f} G ({length} tokens)"),
        ("forward FLOPs per token", f"{flops / length / 1e6:,.2f} M"),
        (
            "global batch",
            f"{training.global_batch_size} = {training.micro_batch_size} micro x {data_ranks} data ranks x {accumulation} accumulated",
        ),
        ("tokens per step", f"{tokens:,}"),
        ("tokens of the run", f"{tokens * training.steps:,} in {training.steps:,} steps"),
        (f"bytes per rank (ZeRO stage {stage}, {data_ranks} data x {tensor_ranks} tensor ranks, {training.precision})", ""),
        ("  weights", size(held * bytes_per_weight / split["weights"])),
        ("  gradients", size(held * bytes_per_weight / split["gradients"])),
        # Stage 0 steps the weights themselves: it has no second copy as masters.
        ("  float32 masters", size(held * 4 / split["state"] if stage else 0)),
        ("  moments", size(held * 8 / split["state"])),
        ("  activations of a micro-batch", f"{size(activations)} (as the CPU's attention keeps them)"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in rows)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def size(number: float) -> str:
    """Bytes in a readable unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.2f} {unit}"
        number /= 1024
    raise AssertionError
