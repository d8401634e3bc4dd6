"""What a run has before its first step: initial weights, or those of another model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from megatape.checkpoint.manifest import MANIFEST, check_hashes
from megatape.checkpoint.reader import CheckpointReader
from megatape.config import Config, ModelConfig, differences
from megatape.model.accounting import meta_model
from megatape.model.init import initial_block
from megatape.model.lora import in_adapter
from megatape.model.parts import position_parameters
from megatape.parallel.parameters import settings
from megatape.run_folder import RunFolder
from megatape.runtime.exchange import exchange
from megatape.runtime.topology import Topology
from megatape.zero.state import WEIGHT, Reader

_NAMED = 3  # parameters that an error names


class Source(Protocol):
    """Weights of a model, under our names."""

    directory: Path

    @property
    def model(self) -> ModelConfig:
        """The model that they belong to."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every parameter."""

    def verify(self, share: int, shares: int) -> None:
        """Compare every `shares`-th file with the hash that was recorded, if one was. Raises ValueError or OSError."""

    def read(self, kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> Tensor:
        """As zero.state.Reader."""


class CheckpointWeights(CheckpointReader):
    """The weights in a checkpoint of ours."""

    @property
    def model(self) -> ModelConfig:
        return self.config.model

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return _shapes(self.model)

    def verify(self, share: int, shares: int) -> None:
        check_hashes(self.directory, self.manifest, share, shares)


def open_source(directory: Path) -> Source:
    """The weights in the folder of an import, a checkpoint or an exported model. Raises FileNotFoundError or ValueError."""
    # Here, because transformers takes seconds to import.
    from megatape.hf.adopt.architecture import read_architecture
    from megatape.hf.adopt.record import IMPORT, open_import
    from megatape.hf.adopt.weights import find_weights

    if (directory / IMPORT).is_file():
        return open_import(directory)
    if (directory / MANIFEST).is_file() or RunFolder(directory).list_checkpoints():
        return CheckpointWeights(directory)
    return find_weights(directory, read_architecture(directory))[0]


def first_state(config: Config, parameters: Mapping[str, nn.Parameter], topology: Topology) -> Reader:
    """Reads the state of a run at step 0. Collective over all ranks.

    Raises ValueError on all of them if the weights of training.init_from are missing, corrupted or another model's."""
    fresh = fresh_state(config, parameters)
    if config.training.init_from is None:
        return fresh
    source = _opened(config, topology)
    given = source.shapes().keys() & parameters.keys()
    if topology.is_main:
        print("\n".join(_told(source, config.model, len(parameters) - len(given))), flush=True)

    def read(kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> Tensor:
        return (source.read if kind == WEIGHT and name in given else fresh)(kind, name, shape, rows, columns)

    return read


def fresh_state(config: Config, parameters: Mapping[str, nn.Parameter]) -> Reader:
    """Reads the state of a new model: initial weights as the parameters declare them, and zeros for the optimizer."""

    def read(kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> Tensor:
        if kind != WEIGHT:
            return torch.zeros(rows.stop - rows.start, columns.stop - columns.start)
        init = settings(parameters[name]).init
        return initial_block(name, shape, init, rows, columns, config.model.init_std, config.training.seed)

    return read


def check_fits(source: Source, model: ModelConfig) -> None:
    """Raise ValueError naming the parameters that keep `model` from starting with these weights.

    With another encoding, what belongs to the encoding alone may be missing, or left over. Adapters may be missing."""
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
            raise ValueError(
                f"training.init_from {source.directory} holds another model: {fault} {', '.join(names[:_NAMED])}{more}: take "
                "over its model section, but for the encoding, the scaling, max_positions and new adapters"
            )


def _opened(config: Config, topology: Topology) -> Source:
    """Opened and checked by all ranks, each hashing its share of the files."""
    source, fault = None, ""
    try:
        source = open_source(Path(str(config.training.init_from)))
        check_fits(source, config.model)
        source.verify(topology.rank, topology.world_size)
    except (ValueError, OSError, SafetensorError) as error:
        fault = str(error)
    if faults := [text for text in exchange(fault, topology) if text]:
        raise ValueError(f"training.init_from: {faults[0]}")
    assert source is not None
    return source


def _told(source: Source, model: ModelConfig, num_fresh: int) -> list[str]:
    lines = [f"starting from the weights in {source.directory}"]
    lines += [f"  model.{found.path}: {found.theirs} -> {found.ours}" for found in differences(source.model, model)]
    return [*lines, f"  {num_fresh} parameters that it lacks start as in a new model"] if num_fresh else lines


def _shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in meta_model(model).named_parameters()}


def _of_encoding(model: ModelConfig) -> set[str]:
    return position_parameters(meta_model(model))
