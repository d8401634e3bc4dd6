"""Merging of an exported adapter into its base.

peft's merge_and_unload is not used: it does not verify the base by hashes, and holds the whole base in memory, not one shard.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from megatape.checkpoint.hashed_files import as_json, write_file
from megatape.errors import MissingPath, UserError, content_errors, path_errors
from megatape.hf.adapters.files import BASE, MATRICES, PREFIX, SETTINGS, WEIGHTS, AdapterBase, hash_of
from megatape.hf.adapters.lora import merged
from megatape.hf.dtypes import dtype_named
from megatape.hf.pretrained import read_pretrained
from megatape.hf.weights.folder_weights import FolderWeights
from megatape.hf.weights.tensor_headers import read_object
from megatape.hf.weights.weight_files import write_weights
from megatape.utils.atomic import new_folder

ADVICE = "export the adapter again"


@dataclass(frozen=True)
class _Adapter:
    """Settings of an exported adapter.

    Attributes:
        folder: Folder of the adapter.
        record: Record of its base.
        alpha: Scale of the adapter.
        rank: Rank of the adapter.
    """

    folder: Path
    record: AdapterBase
    alpha: float
    rank: int

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the adapter and of the hashed weights of its base."""
        return dtype_named(self.record.dtype)


@path_errors()
def merge_adapter(adapter: Path, base: Path, out: Path) -> None:
    """Write a model with an adapter merged into its weights. Sums are in float32 and stored in the adapter's precision.

    Args:
        adapter: Folder of an exported adapter.
        base: Folder of the model that it was trained on.
        out: Folder to write. It must not exist.

    Raises:
        FileExistsError: `out` exists.
        FileNotFoundError, UserError: A folder is not an exported adapter, or not its base.
    """
    opened = _read_adapter(adapter)
    weights = read_pretrained(base).weights
    with safe_open(adapter / WEIGHTS, framework="pt") as file, new_folder(out) as folder:
        merger = _Merger(opened, file, base, weights)
        merger.check_names()
        write_weights(folder, weights.shapes(), opened.dtype, merger.read, merger.name_of)
        _copy_other_files(base, folder, opened.record)


def _read_adapter(folder: Path) -> _Adapter:
    """Read the settings of an exported adapter. Raises MissingPath or UserError for another folder."""
    if not (folder / BASE).is_file():
        raise MissingPath(f"{folder}: no {BASE}, so it is no adapter that `megatape export --adapter` wrote")
    settings = read_object(folder / SETTINGS)
    with content_errors(f"{folder}: not what `megatape export --adapter` writes", ADVICE, (ValueError, KeyError, TypeError)):
        record = AdapterBase.model_validate(read_object(folder / BASE))
        alpha = float(settings["lora_alpha"])
        rank = int(settings["r"])
    return _Adapter(folder, record, alpha, rank)


def _copy_other_files(base: Path, folder: Path, record: AdapterBase) -> None:
    """Copy all files of a model but its weights, and write the new precision into config.json."""
    for path in sorted(base.iterdir()):
        if path.is_file() and ".safetensors" not in path.name and path.name != "config.json":
            shutil.copyfile(path, folder / path.name)
    fields: dict[str, Any] = read_object(base / "config.json")
    fields.pop("torch_dtype", None)
    fields["dtype"] = record.dtype
    write_file(folder / "config.json", [as_json(fields)])


class _Merger:
    """Reader of merged weights.

    Args:
        adapter: Settings of the adapter.
        file: Open file of the adapter's weights.
        base: Folder of the base, for messages.
        weights: Weights of the base.
    """

    def __init__(self, adapter: _Adapter, file: Any, base: Path, weights: FolderWeights) -> None:
        self._adapter = adapter
        self._file = file
        self._base = base
        self._weights = weights
        self._held: set[str] = set(file.keys())

    def name_of(self, parameter: str) -> str:
        """Return the name of a parameter in transformers."""
        return self._weights.tensors[parameter].name

    def check_names(self) -> None:
        """Check that the tensors of the adapter belong to the base.

        Raises:
            UserError: The adapter has a tensor that the base has no place for, or lacks one and its hash.
        """
        fault = f"{self._base} is not the base of {self._adapter.folder}"
        names = {location.name for location in self._weights.tensors.values()}
        layers = {name.removesuffix(".weight") for name in names}
        for key in sorted(self._held):
            name = key.removeprefix(PREFIX)
            # An adapter has a tied output matrix, and the base has not.
            if name in names or name == "lm_head.weight":
                continue
            module, _, matrix = name.removesuffix(".weight").rpartition(".")
            if matrix not in MATRICES.values() or module not in layers:
                raise UserError(f"{fault}: it has no {name}: give the model that it was trained on")
        for name in sorted(names):
            if PREFIX + name not in self._held and name not in self._adapter.record.sha256:
                raise UserError(f"{fault}: that lacks {name}: give the model that it was trained on")

    def read(self, ours: str) -> Tensor:
        """Read a weight in float32: the trained one, or that of the base with its adapter merged.

        Args:
            ours: MegaTAPE's name of the parameter.

        Raises:
            UserError: The base has another value than the one that the adapter was trained with.
        """
        name = self.name_of(ours)
        record = self._adapter.record
        shape = self._weights.tensors[ours].shape
        if PREFIX + name in self._held:
            return self._trained(name, shape)

        weight = self._weights.tensor(ours)
        if hash_of(ours, weight, shape, self._adapter.dtype) != record.sha256[name]:
            raise UserError(
                f"{self._base} is not the base of {self._adapter.folder}, which was trained from {record.trained_from}: {name} "
                f"has other values in {record.dtype}. Give the folder that it was trained from, or what "
                "`megatape export --without-adapter` writes for the same checkpoint and precision"
            )
        module, _, kind = name.rpartition(".")
        name_of_a = f"{module}.{MATRICES['a']}.weight"
        name_of_b = f"{module}.{MATRICES['b']}.weight"
        if kind != "weight" or PREFIX + name_of_a not in self._held:
            return weight
        rows, columns = weight.shape
        a = self._trained(name_of_a, (self._adapter.rank, columns))
        b = self._trained(name_of_b, (rows, self._adapter.rank))
        return merged(weight, a, b, self._adapter.alpha, self._adapter.rank)

    def _trained(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read a tensor of the adapter in float32."""
        tensor: Tensor = self._file.get_tensor(PREFIX + name).float()
        if tuple(tensor.shape) != shape:
            raise UserError(
                f"{self._adapter.folder}: {name} has shape {tuple(tensor.shape)}, for {self._base} it is {shape}: {ADVICE}"
            )
        return tensor
