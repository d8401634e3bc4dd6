"""What a run has before its first step: initial weights, or those of another model."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from megatape.checkpoint.manifest import describe
from megatape.checkpoint.weights import FileRecord, StoredWeights
from megatape.config import Config, ModelConfig, differences
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError, path_errors
from megatape.hf.model_folder import ModelWeights, open_model_folder
from megatape.model.accounting import meta_model
from megatape.model.init import initial_block
from megatape.model.lora import in_adapter
from megatape.model.parts import position_parameters
from megatape.parallel.parameters import settings
from megatape.runtime.exchange import on_all
from megatape.runtime.topology import Topology
from megatape.zero.state import WEIGHT, Reader

LOG = logging.getLogger(__name__)

_NAMED = 3  # parameters that an error names


class InitialState(NamedTuple):
    """What a run has at step 0.

    read: of its state. base: those of its frozen weights that checkpoints leave out, because the files of
    training.init_from hold them; None if there are none.
    """

    read: Reader
    base: StoredWeights | None


def initial_state(
    config: Config,
    parameters: Mapping[str, nn.Parameter],
    topology: Topology,
    tokenizer: Tokenizer,
    base: Path | None = None,
) -> InitialState:
    """The state of a run at step 0. Collective over all ranks. tokenizer: that of the data. base: as CheckpointReader takes it.

    Raises UserError on all of them if the weights of training.init_from are missing, corrupted or another model's.
    """
    fresh = fresh_state(config, parameters)
    if config.training.init_from is None:
        if base is not None:
            raise UserError("base belongs to a checkpoint: add `resume` or training.init_from, or leave it out")
        return InitialState(fresh, None)
    frozen = {name for name, parameter in parameters.items() if not parameter.requires_grad}
    source, kept = _open_verified(Path(config.training.init_from), base, config.model, frozen, topology)
    given = source.shapes().keys() & parameters.keys()
    if topology.is_main:
        told = [*_summary(source, config.model, len(parameters) - len(given)), *_tokenizer_warning(source.directory, tokenizer)]
        LOG.info("\n".join(told))

    def read(kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> Tensor:
        return (source.read if kind == WEIGHT and name in given else fresh)(kind, name, shape, rows, columns)

    return InitialState(read, kept)


def fresh_state(config: Config, parameters: Mapping[str, nn.Parameter]) -> Reader:
    """Reads the state of a new model: initial weights as the parameters declare them, and zeros for the optimizer."""

    def read(kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> Tensor:
        if kind != WEIGHT:
            return torch.zeros(rows.stop - rows.start, columns.stop - columns.start)
        init = settings(parameters[name]).init
        return initial_block(name, shape, init, rows, columns, config.model.init_std, config.training.seed)

    return read


def check_fits(source: ModelWeights, model: ModelConfig) -> None:
    """Raise UserError naming the parameters that keep `model` from starting with these weights.

    With another encoding, what belongs to the encoding alone may be missing, or left over. Adapters may be missing.
    """
    ours, theirs = _shapes(model), source.shapes()
    free = set() if source.model.encoding == model.encoding else _of_encoding(model) | _of_encoding(source.model)
    lacking = {name for name in ours.keys() - theirs.keys() - free if not in_adapter(name)}
    faults = {
        "it lacks": sorted(lacking),
        "this model lacks": sorted(theirs.keys() - ours.keys() - free),
        "shapes differ:": [
            f"{name} {theirs[name]}, here {shape}" for name, shape in ours.items() if theirs.get(name, shape) != shape
        ],
    }
    for fault, names in faults.items():
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            raise UserError(
                f"training.init_from {source.directory} holds another model: {fault} {', '.join(names[:_NAMED])}{more}: take "
                "over its model section, but for the encoding, the scaling, max_positions and new adapters"
            )


def _open_verified(
    directory: Path, base: Path | None, model: ModelConfig, frozen: set[str], topology: Topology
) -> tuple[ModelWeights, StoredWeights | None]:
    """Opened and checked by all ranks, each hashing its share of the files; and the frozen weights that its files hold."""
    source, kept = None, None

    def verify() -> dict[str, dict[str, Any]]:
        nonlocal source, kept
        source = open_model_folder(directory, base).weights()
        check_fits(source, model)
        source.verify(topology.rank, topology.world_size)
        stored = source.stored()
        kept = stored.restricted(sorted(stored.tensors.keys() & frozen))
        used = {record.file for record in kept.tensors.values()}
        unhashed = sorted(used - kept.files.keys())[topology.rank :: topology.world_size]  # those of an export
        return {name: describe(kept.directory / name) for name in unhashed}

    shares = on_all(path_errors()(verify), topology, context="training.init_from: ")
    assert source is not None and kept is not None
    kept.files = {**kept.files, **{name: FileRecord(**entry) for share in shares for name, entry in share.items()}}
    return source, kept if kept.tensors else None


def _summary(source: ModelWeights, model: ModelConfig, num_fresh: int) -> list[str]:
    lines = [f"starting from the weights in {source.directory}"]
    lines += [f"  model.{found.path}: {found.theirs} -> {found.ours}" for found in differences(source.model, model)]
    return [*lines, f"  {num_fresh} parameters that it lacks start as in a new model"] if num_fresh else lines


def _tokenizer_warning(directory: Path, tokenizer: Tokenizer) -> list[str]:
    """A warning if the tokenizer beside the weights, as far as there is one, gives other ids than that of the data."""
    try:
        theirs = load_tokenizer(directory)
    except (UserError, OSError):
        return []
    text = Path(__file__).read_text(encoding="utf-8")
    found, expected = (one.encode_documents([text])[0] for one in (tokenizer, theirs))
    if np.array_equal(found, expected):
        return []
    warning = (
        f"warning: the tokenizer of the data ({tokenizer.origin}) gives a text other ids than that of the weights "
        f"({directory}): re-tokenize the data with the model's tokenizer, unless you retrain the embeddings"
    )
    return [warning]


def _shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in meta_model(model).named_parameters()}


def _of_encoding(model: ModelConfig) -> set[str]:
    return position_parameters(meta_model(model))
