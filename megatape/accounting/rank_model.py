"""One rank's share of a model, without memory or processes."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from megatape.accounting.extrapolation import changed
from megatape.attention.attend import backends_by_priority
from megatape.config import Config, ParallelConfig
from megatape.distributed.mesh import Axis, fake_axis
from megatape.model.build import build_model
from megatape.model.requirements import attention_requirements
from megatape.model.transformer import Transformer


def axes_of(parallel: ParallelConfig) -> dict[str, Axis]:
    """Return the axes of a run on which the model exchanges, by name."""
    return {name: fake_axis(name, size) for name, size in parallel.axes.items()}


def build(config: Config, num_layers: int) -> Transformer:
    """Return one rank's share of a run's model, with this number of layers. On shapes it has the attention of a GPU."""
    axes = axes_of(config.parallel)
    training = config.training
    requirements = attention_requirements(config, "cuda")[0]
    return build_model(
        changed(config, "model", num_layers=num_layers).model,
        axes["tensor"],
        sequence_axis=axes["sequence"],
        context_axis=axes["context"],
        trainable=training.trainable,
        frozen=training.frozen,
        backends=backends_by_priority(training.attention, requirements),
        update_by_kernel=True,
        num_shifted_groups=training.num_shifted_groups,
        activation_checkpointing=training.activation_checkpointing,
        chunk_tokens=training.chunk_tokens,
    )


def num_chunks(config: Config) -> int:
    """Return the number of chunks of MLP and position update in a pass of a run."""
    tokens = config.data.sequence_length // config.parallel.sample_ranks
    chunk_tokens = config.training.chunk_tokens or tokens
    return -(-tokens // chunk_tokens)


@contextmanager
def on_shapes(precision: str) -> Iterator[None]:
    """Create tensors inside the block without memory, in a precision such as "bfloat16"."""
    with in_precision(precision), torch.device("meta"):
        yield


@contextmanager
def in_precision(precision: str) -> Iterator[None]:
    """Create tensors inside the block in a precision by default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, precision))
    try:
        with warnings.catch_warnings():
            # The collectives have the names of the oldest supported torch. Newer versions warn about them.
            warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
            yield
    finally:
        torch.set_default_dtype(before)
