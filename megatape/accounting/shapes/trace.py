"""Runs one rank's share of a model of any size on shapes alone."""

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby

import torch
from torch import nn

from megatape.accounting.shapes.meta_device import on_shapes
from megatape.accounting.shapes.module_events import Event, record_events
from megatape.accounting.shapes.rank_model import build_rank_model
from megatape.accounting.workload import Workload
from megatape.model.build import meta_model
from megatape.model.trainable import check_trainable
from megatape.model.transformer import Transformer

# Layers of the shallow model that runs in place of a deep one.
NUM_SHALLOW_LAYERS = 5
# Index of the shallow model's layer that stands for all inner layers of the deep one.
REPEATED_LAYER = 2


@dataclass(frozen=True)
class TracedMicroBatch:
    """Forward and backward pass of a micro-batch on one rank.

    Attributes:
        model: The rank's share of the model.
        trained: Weights with a gradient.
        events: Fetches and releases of weights, in order.
    """

    model: Transformer
    trained: list[nn.Parameter]
    events: list[Event]


@dataclass(frozen=True)
class RankParameters:
    """Parameters of one rank.

    Attributes:
        model: The rank's share of the model.
        trained: Weights with a gradient.
    """

    model: Transformer
    trained: list[nn.Parameter]


@cache
def trace_micro_batch(workload: Workload) -> TracedMicroBatch:
    """Trace a micro-batch on a short sequence. Modules, parameters and events are the same as on a full one."""
    model = workload.model
    if workload.micro_batch_size > 1:
        # Events do not depend on the batch size.
        return trace_micro_batch(replace(workload, micro_batch_size=1))
    check_trainable(meta_model(model), workload.trainable, workload.frozen)
    if model.num_layers > NUM_SHALLOW_LAYERS and len(model.pattern.kinds) == 1:
        traced = trace_deep(workload)
        if traced is not None:
            return traced
    return trace_layers(workload, model.num_layers)


def trace_parameters(workload: Workload) -> RankParameters:
    """Trace the parameters only. Unlike events, they don't depend on activation checkpointing and the ranks sharing samples.

    A search with many of these settings traces them only once.
    """
    plain = replace(workload, activation_checkpointing="none", chunk_tokens=None)
    traced = trace_micro_batch(plain.with_ranks(sp=1, cp=1))
    return RankParameters(traced.model, traced.trained)


def trace_layers(workload: Workload, num_layers: int) -> TracedMicroBatch:
    """Trace a model with this number of layers by running all of them."""
    length = 8 * workload.num_chunks * workload.parallel.sample_ranks
    model, events = run_on_shapes(workload, num_layers, length)
    trained = [parameter for parameter in model.parameters() if parameter.grad is not None]
    return TracedMicroBatch(model, trained, events)


def trace_deep(workload: Workload) -> TracedMicroBatch | None:
    """Trace a deep model by running only NUM_SHALLOW_LAYERS layers.

    This is exact: the third layer stands for all but the first two, which may have nothing trained before them, and the last
    two.

    Returns:
        The traced micro-batch, or None if training.trainable or frozen treat layers differently.
    """
    shallow = trace_layers(workload, NUM_SHALLOW_LAYERS)
    depth = workload.model.num_layers
    with on_shapes(workload.precision):
        model = build_rank_model(workload, depth)

    shallow_weights = dict(shallow.model.named_parameters())
    trained = []
    for name, parameter in model.named_parameters():
        shallow_weight = shallow_weights[_shallow_name(name, depth)]
        if parameter.requires_grad != shallow_weight.requires_grad:
            return None
        if shallow_weight.grad is not None:
            trained.append(parameter)
    return TracedMicroBatch(model, trained, _repeat_events(shallow, model, depth))


def _shallow_name(name: str, depth: int) -> str:
    """Translate a name in the deep model to the shallow model."""

    def shallow_layer(match: re.Match[str]) -> str:
        layer = int(match[0])
        from_end = layer - depth + NUM_SHALLOW_LAYERS
        return str(max(min(layer, REPEATED_LAYER), from_end))

    return re.sub(r"(?<=^blocks\.)\d+", shallow_layer, name)


def _repeat_events(shallow: TracedMicroBatch, model: Transformer, depth: int) -> list[Event]:
    """Repeat the events of each shallow layer for the deep layers that it stands for."""
    shallow_modules = dict(shallow.model.named_modules())
    # Module of the shallow model -> modules of the deep model that it stands for, by layer.
    copies: defaultdict[nn.Module, list[nn.Module]] = defaultdict(list)
    for name, module in model.named_modules():
        copies[shallow_modules[_shallow_name(name, depth)]].append(module)
    block_of: dict[nn.Module, nn.Module] = {}
    for block in shallow.model.blocks:
        block_of |= dict.fromkeys(block.modules(), block)
    last_block = shallow.model.blocks[-1]

    events: list[Event] = []
    # 1 to visit layers from first to last, -1 to visit them from last to first.
    direction = 1
    for owner, group in groupby(shallow.events, lambda event: block_of.get(event.module)):
        in_block = list(group)
        if owner is last_block:
            # The backward pass begins.
            direction = -1
        modules_by_layer = list(zip(*(copies[event.module] for event in in_block), strict=True))
        for modules in modules_by_layer[::direction]:
            for event, module in zip(in_block, modules, strict=True):
                events.append(replace(event, module=module))
    return events


def run_on_shapes(workload: Workload, num_layers: int, length: int) -> tuple[Transformer, list[Event]]:
    """Run a forward and backward pass over short samples, in as many chunks as the real run.

    Args:
        workload: The rank's model, batch and settings.
        num_layers: Layers to build.
        length: Tokens per sample.

    Returns:
        The model with its gradients, and the events of its modules.
    """
    if workload.chunk_tokens is not None:
        rank_tokens = length // workload.parallel.sample_ranks
        workload = replace(workload, chunk_tokens=rank_tokens // workload.num_chunks)
    # The meta device is three times as fast as fake tensors. It saves other activations than a CPU, but sends the same
    # bytes.
    with on_shapes(workload.precision):
        model = build_rank_model(workload, num_layers)
        # ZeRO stage 3 gathers all weights of a compiled block at once.
        units = model.blocks if workload.compile else ()
        events = record_events(model, units)
        tokens = torch.zeros(workload.micro_batch_size, length, dtype=torch.long)
        document_starts = tokens if workload.mask_documents else None
        loss = model(tokens, tokens, document_starts, tokens, dropout_seeds=tokens[:, 0])
        # A shallow model may lack the layers that are trained.
        if loss.requires_grad:
            loss.backward()
    return model, events
