"""A model of any size run on shapes alone, as one rank of those that divide it would run it: without memory or processes."""

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from itertools import groupby
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

import torch
from torch import nn

from megatape.accounting.parameters import meta_model
from megatape.accounting.saved import saved_bytes
from megatape.accounting.zero3 import Event, record_events
from megatape.attention.attend import backends_by_priority
from megatape.config import Config, ZeroConfig
from megatape.distributed.mesh import Axis, fake_axis
from megatape.distributed.traffic import CountTraffic, Sent
from megatape.model.build import build_model
from megatape.model.smoke_test import attention_needs
from megatape.model.trainable import check_trainable
from megatape.model.transformer import Transformer
from megatape.utils.torch_internals import FakeTensorMode, fused_on_shapes

SHALLOW = 5  # layers that run for all of a deep model
OVERLAPPED = "overlapped"

Key = TypeVar("Key")
Rest = ParamSpec("Rest")
Count = TypeVar("Count")


def count_once(function: Callable[Concatenate[Config, Rest], Count]) -> Callable[Concatenate[Config, Rest], Count]:
    """Cache the counts on shapes for all configurations that differ in ZeRO, which changes none of them."""
    cached = cast(Callable[Concatenate[Config, Rest], Count], cache(function))

    @wraps(function)
    def counted(config: Config, *args: Rest.args, **kwargs: Rest.kwargs) -> Count:
        return cached(config.model_copy(update={"zero": ZeroConfig()}), *args, **kwargs)

    return counted


@dataclass(frozen=True)
class Pass:
    """One forward and backward pass over a micro-batch on one rank."""

    model: Transformer
    trained: list[nn.Parameter]  # those that get a gradient
    events: list[Event]  # when modules use their weights


@count_once
def run_pass(config: Config) -> Pass:
    """A pass over a short sequence. Its modules, parameters and events are those of a micro-batch of the run."""
    if config.training.micro_batch_size > 1:  # events are the same
        return run_pass(changed(config, "training", micro_batch_size=1))
    check_trainable(meta_model(config.model), config.training.trainable, config.training.frozen)
    deep = deep_pass(config) if config.model.num_layers > SHALLOW and not config.model.nope_every else None
    return deep or one_pass(config, config.model.num_layers)


def run_weights(config: Config) -> Pass:
    """Return a pass with the modules and parameters of a run, but maybe different events.

    It does not depend on activation checkpointing or on the ranks that divide samples, so a search runs it only once.
    """
    plain = changed(config, "training", activation_checkpointing="none", chunk_tokens=None)
    return run_pass(changed(plain, "parallel", sp=1, cp=1))


def one_pass(config: Config, num_layers: int) -> Pass:
    """A pass that runs so many layers."""
    model, events = _run(config, num_layers, 8 * num_chunks(config) * config.parallel.sample_ranks)
    return Pass(model, [parameter for parameter in model.parameters() if parameter.grad is not None], events)


def deep_pass(config: Config) -> Pass | None:
    """The pass of a model with more layers than SHALLOW, of which only so many run.

    Exact, because the third stands for layers that are alike: all but the first two, which may have nothing trained before
    them, and the last two. None if training.trainable or frozen treat layers differently.
    """
    shallow = one_pass(config, SHALLOW)
    depth = config.model.num_layers
    with on_shapes(config):
        model = build(config, depth)

    def twin(name: str) -> str:
        """The name in the shallow model of a weight or a module."""
        return re.sub(
            r"(?<=^blocks\.)\d+", lambda layer: str(max(min(int(layer[0]), 2), int(layer[0]) - depth + SHALLOW)), name
        )

    weights = dict(shallow.model.named_parameters())
    modules = dict(shallow.model.named_modules())
    twins = {parameter: weights[twin(name)] for name, parameter in model.named_parameters()}
    if any(parameter.requires_grad != of_twin.requires_grad for parameter, of_twin in twins.items()):
        return None
    copies: defaultdict[nn.Module, list[nn.Module]] = defaultdict(list)  # in the order of layers
    for name, module in model.named_modules():
        copies[modules[twin(name)]].append(module)
    blocks = {module: block for block in shallow.model.blocks for module in block.modules()}
    events: list[Event] = []
    step = 1  # from layer to layer, until the backward pass begins
    for block, group in groupby(shallow.events, lambda event: blocks.get(event.module)):
        in_block = list(group)
        step = -1 if block is shallow.model.blocks[-1] else step
        for same in list(zip(*(copies[event.module] for event in in_block), strict=True))[::step]:
            events += [Event(event.kind, module) for event, module in zip(in_block, same, strict=True)]
    return Pass(model, [parameter for parameter, of_twin in twins.items() if of_twin.grad is not None], events)


def model_traffic(config: Config, axis: str) -> Sent:
    """Bytes that a rank sends to those of an axis in the forward and backward pass of one micro-batch of a run.

    axis: "tensor", "sequence" or "context". OVERLAPPED has those of them that are overlapped with computation.
    """
    return Counter({collective: count for (name, collective), count in _sent(config).items() if name == axis})


@count_once
def _sent(config: Config) -> Counter[tuple[str, str]]:
    """As `model_traffic`, by axis and collective.

    Bytes are an affine function of the sequence length, and each of its coefficients is an affine function of the depth,
    because all layers but the last are alike, or with model.nope_every all periods. So two shallow models on short sequences
    give them, and the result is exact (unless training.trainable or frozen treat layers differently).
    """
    axes = axes_of(config)
    samples = config.training.micro_batch_size
    short = 8 * num_chunks(config) * config.parallel.sample_ranks
    if config.parallel.sample_ranks == 1:
        return Counter()
    if samples > 4 and samples % 2 == 0:  # in halves, of which one is overlapped; gradients of gains are sent once
        few = {number: _sent(changed(config, "training", micro_batch_size=number)) for number in (2, 4)}
        return extrapolate_all(few, samples)

    def at_length(num_layers: int) -> Counter[tuple[str, str]]:
        counts = {}
        for length in (short, 2 * short):
            with CountTraffic(*axes.values()) as traffic:
                _run(config, num_layers, length)
            sent = {name: traffic.sent[name] | {OVERLAPPED: traffic.overlapped[name]} for name in axes}
            counts[length] = Counter({(name, key): count for name, of_axis in sent.items() for key, count in of_axis.items()})
        return extrapolate_all(counts, config.data.sequence_length)

    return extrapolate_all({num_layers: at_length(num_layers) for num_layers in depths(config)}, config.model.num_layers)


def _run(config: Config, num_layers: int, length: int) -> tuple[Transformer, list[Event]]:
    """A forward and backward pass over `length` tokens: the model with its gradients, and the events of its modules.

    It has as many chunks as a pass of the run.
    """
    if config.training.chunk_tokens is not None:
        config = changed(config, "training", chunk_tokens=length // config.parallel.sample_ranks // num_chunks(config))
    # The meta device is three times as fast as fake tensors. It saves other activations than a CPU, but sends the same bytes.
    with on_shapes(config):
        model = build(config, num_layers)
        events = record_events(model)
        tokens = torch.zeros(config.training.micro_batch_size, length, dtype=torch.long)
        document_starts = tokens if config.data.mask_documents else None
        loss = model(tokens, tokens, document_starts, tokens, dropout_seeds=tokens[:, 0])
        if loss.requires_grad:  # not where a shallow model lacks the layers that are trained
            loss.backward()
    return model, events


def num_chunks(config: Config) -> int:
    """How many chunks MLP and position update take in a pass of the run."""
    tokens = config.data.sequence_length // config.parallel.sample_ranks
    return -(-tokens // (config.training.chunk_tokens or tokens))


class Activations(NamedTuple):
    """Bytes that autograd keeps on one rank between forward and backward pass of a micro-batch.

    total: of the whole model; layer: of each layer but the last, or with model.nope_every of each period.
    """

    total: int
    layer: int


@count_once
def activations(config: Config, on_gpu: bool) -> Activations:
    """What a run's model keeps with the attention that it gets on a GPU or on a CPU.

    Counted at two depths and extrapolated to all layers, which is exact. So are the extrapolations on a GPU from short samples,
    since nothing N x N is kept there, and from small micro-batches.
    """
    length = config.data.sequence_length
    short = 64 * config.parallel.sample_ranks * (config.training.num_shifted_groups or 1)
    samples = config.training.micro_batch_size
    if samples > 2:
        one, two = (activations(changed(config, "training", micro_batch_size=few), on_gpu) for few in (1, 2))
        return Activations(*(extrapolate({1: at_one, 2: at_two}, samples) for at_one, at_two in zip(one, two, strict=True)))

    def kept(num_layers: int, length: int) -> int:
        with fused_on_shapes(), precision_of(config), torch.device("meta") if on_gpu else FakeTensorMode():
            share = build(config, num_layers)
            return saved_bytes(share, samples, length, config.data.mask_documents)

    def kept_at_length(num_layers: int) -> int:
        if not on_gpu:
            return kept(num_layers, length)
        return extrapolate({tokens: kept(num_layers, tokens) for tokens in (short, 2 * short)}, length)

    by_depth = {num_layers: kept_at_length(num_layers) for num_layers in depths(config)}
    first, second = by_depth.values()
    return Activations(extrapolate(by_depth, config.model.num_layers), second - first)


def depths(config: Config) -> tuple[int, int]:
    """Two depths from which the costs of a model's layers follow.

    2 and 3, since all layers but the last are alike. With model.nope_every periods of layers are: then two depths that end
    where the model ends in its period, with two layers that have positions at least.
    """
    every = config.model.nope_every
    first = 3 + (config.model.num_layers - 3) % every if every else 2
    return first, first + (every or 1)


def extrapolate(counts: Mapping[int, int], x: int) -> int:
    """The count at `x`, of which it is an affine function, from those at two other values."""
    (first, at_first), (second, at_second) = counts.items()
    return at_first + (at_second - at_first) * (x - first) // (second - first)


def extrapolate_all(counters: Mapping[int, Counter[Key]], x: int) -> Counter[Key]:
    """`extrapolate` for each key of two counters."""
    keys = dict.fromkeys(key for counter in counters.values() for key in counter)
    return Counter({key: extrapolate({at: counter[key] for at, counter in counters.items()}, x) for key in keys})


def scaled(counter: Counter[Key], times: int) -> Counter[Key]:
    """Each count of so many times."""
    return Counter({key: count * times for key, count in counter.items()})


def changed(config: Config, section: str, **values: Any) -> Config:
    """The configuration with other values in a section, unchecked."""
    return config.model_copy(update={section: getattr(config, section).model_copy(update=values)})


def axes_of(config: Config) -> dict[str, Axis]:
    """The axes of a run on which the model exchanges, by name."""
    return {name: fake_axis(name, size) for name, size in config.parallel.axes.items()}


def build(config: Config, num_layers: int) -> Transformer:
    """One rank's share of a run's model and samples, with so many layers. On shapes it has the attention of a GPU."""
    axes = axes_of(config)
    return build_model(
        changed(config, "model", num_layers=num_layers).model,
        axes["tensor"],
        sequence_axis=axes["sequence"],
        context_axis=axes["context"],
        trainable=config.training.trainable,
        frozen=config.training.frozen,
        backends=backends_by_priority(config.training.attention, attention_needs(config, "cuda")[0]),
        update_by_kernel=True,
        num_shifted_groups=config.training.num_shifted_groups,
        activation_checkpointing=config.training.activation_checkpointing,
        chunk_tokens=config.training.chunk_tokens,
    )


@contextmanager
def on_shapes(config: Config) -> Iterator[None]:
    """Tensors created inside the block have the precision of a run, and no memory."""
    with precision_of(config), torch.device("meta"):
        yield


@contextmanager
def precision_of(config: Config) -> Iterator[None]:
    """Tensors created inside the block have the configuration's precision by default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, config.training.precision))
    try:
        with warnings.catch_warnings():
            # The collectives' names are those of the oldest supported torch; newer versions warn.
            warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
            yield
    finally:
        torch.set_default_dtype(before)
