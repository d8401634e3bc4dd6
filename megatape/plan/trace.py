"""A model run on shapes alone, as one tensor rank would run it: no memory, no processes, any size."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from megatape.config import Config, ModelConfig
from megatape.model.accounting import saved_bytes
from megatape.model.transformer import Transformer
from megatape.parallel.collectives import TensorRanks
from megatape.parallel.traffic import Sent, planned_traffic
from megatape.plan.zero3 import Event, record_events


@dataclass(frozen=True)
class Pass:
    """One forward and backward pass of a micro-batch on one tensor rank."""

    model: nn.Module
    trained: list[nn.Parameter]  # those that get a gradient
    events: list[Event]  # when modules use their weights
    sent: Sent  # bytes to the other tensor ranks


def run_pass(config: Config) -> Pass:
    """The pass of config's micro-batch. Modules and parameters are those of a short sequence; bytes are an affine function of its
    length, which two short passes determine exactly."""
    short = 8 * config.parallel.tp
    first, second = (_run(config, length) for length in (short, 2 * short))
    sent: Sent = Counter()
    for collective, at_short in first.sent.items():
        per_token = (second.sent[collective] - at_short) // short
        sent[collective] = at_short + per_token * (config.data.sequence_length - short)
    return Pass(first.model, first.trained, first.events, sent)


def _run(config: Config, length: int) -> Pass:
    with shapes_only(config):
        model = build(config, config.model)
        events = record_events(model)
        tokens = torch.zeros(config.training.micro_batch_size, length, dtype=torch.long)
        starts = tokens if config.data.mask_documents else None
        with planned_traffic() as sent:
            model(tokens, tokens, starts, tokens).backward()
        trained = [parameter for parameter in model.parameters() if parameter.grad is not None]
    return Pass(model, trained, events, sent)


def activation_bytes(config: Config, model: ModelConfig, checkpointing: bool) -> int:
    """Bytes that autograd keeps on one rank between forward and backward pass of a micro-batch, as the CPU's attention keeps them.

    Counted at two and at three layers (all layers but the last are alike) and carried on to all; exact."""
    counts = []
    for num_layers in (2, 3):
        shallow = model.model_copy(update={"num_layers": num_layers})
        with shapes_only(config):
            counts.append(
                saved_bytes(
                    build(config, shallow, checkpointing),
                    config.training.micro_batch_size,
                    config.data.sequence_length,
                    config.data.mask_documents,
                )
            )
    return counts[0] + (counts[1] - counts[0]) * (model.num_layers - 2)


def build(config: Config, model: ModelConfig, checkpointing: bool | None = None) -> Transformer:
    """One tensor rank's share of the model."""
    if checkpointing is None:
        checkpointing = config.training.activation_checkpointing
    return Transformer(model, checkpointing, TensorRanks(config.parallel.tp))


@contextmanager
def shapes_only(config: Config) -> Iterator[None]:
    """Tensors made inside have no memory, and by default the precision of the configuration."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, config.training.precision))
    try:
        with FakeTensorMode():
            yield
    finally:
        torch.set_default_dtype(before)
