"""Merges an exported adapter into its base.

peft's merge_and_unload does not verify the base by hashes, and needs all of it in memory instead of one shard.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from megatape.checkpoint.format.hashed_files import as_json, write_file
from megatape.errors import MissingPath, UserError, content_errors, path_errors
from megatape.hf.adapters.files import BASE, MATRICES, PREFIX, SETTINGS, WEIGHTS, AdapterBase, hash_of
from megatape.hf.adapters.lora import merged
from megatape.hf.dtypes import dtype_named
from megatape.hf.pretrained import read_pretrained
from megatape.hf.weights.folder_weights import FolderWeights
from megatape.hf.weights.tensor_headers import read_object
from megatape.hf.weights.weight_files import write_weights
from megatape.utils.files.atomic import new_folder

ADVICE = "export the adapter again"


@dataclass(frozen=True)
class _Adapter:
    """Settings of an exported adapter.

    Attributes:
        folder: Adapter folder.
        record: Record of the base.
        alpha: LoRA alpha.
        rank: LoRA rank.
    """

    folder: Path
    record: AdapterBase
    alpha: float
    rank: int

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the adapter and the hashed base weights."""
        return dtype_named(self.record.dtype)


@path_errors()
def merge_adapter(adapter: Path, base: Path, out: Path) -> None:
    """Write a model with an adapter merged into its weights. Sums are float32, and stored in the adapter's precision.

    Args:
        adapter: Folder of an exported adapter.
        base: Folder of the model that the adapter was trained on.
        out: Folder to write. It must not exist.

    Raises:
        FileExistsError: `out` exists.
        FileNotFoundError, UserError: `adapter` is not an exported adapter, or `base` is not its base.
    """
    opened = _read_adapter(adapter)
    weights = read_pretrained(base).weights
    with safe_open(adapter / WEIGHTS, framework="pt") as file, new_folder(out) as folder:
        merger = _Merger(opened, file, base, weights)
        merger.check_names()
        write_weights(folder, weights.shapes(), opened.dtype, merger.read, merger.name_of)
        _copy_other_files(base, folder, opened.record)


def _read_adapter(folder: Path) -> _Adapter:
    """Read the settings of an exported adapter. Raises MissingPath or UserError if the folder is not one."""
    if not (folder / BASE).is_file():
        raise MissingPath(f"{folder}: no {BASE}, so it is not an adapter that `megatape export --adapter` wrote")
    settings = read_object(folder / SETTINGS)
    with content_errors(f"{folder}: not what `megatape export --adapter` writes", ADVICE, (ValueError, KeyError, TypeError)):
        record = AdapterBase.model_validate(read_object(folder / BASE))
        alpha = float(settings["lora_alpha"])
        rank = int(settings["r"])
    return _Adapter(folder, record, alpha, rank)


def _copy_other_files(base: Path, folder: Path, record: AdapterBase) -> None:
    """Copy all files of a model except its weights, and write the new precision into config.json."""
    for path in sorted(base.iterdir()):
        if path.is_file() and ".safetensors" not in path.name and path.name != "config.json":
            shutil.copyfile(path, folder / path.name)
    fields: dict[str, Any] = read_object(base / "config.json")
    fields.pop("torch_dtype", None)
    fields["dtype"] = record.dtype
    write_file(folder / "config.json", [as_json(fields)])


class _Merger:
    """Reads base weights, and merges the adapter into them.

    Args:
        adapter: Adapter settings.
        file: Open file with the adapter's weights.
        base: Folder of the base, for messages.
        weights: Weights of the base.
    """

    def __init__(self, adapter: _Adapter, file: Any, base: Path, weights: FolderWeights) -> None:
        self._adapter = adapter
        self._file = file
        self._base = base
        self._weights = weights
        self._adapter_tensors: set[str] = set(file.keys())

    def name_of(self, parameter: str) -> str:
        """Return the name of a parameter in transformers."""
        return self._weights.tensors[parameter].name

    def check_names(self) -> None:
        """Check that the tensors of the adapter belong to the base.

        Raises:
            UserError: The base lacks the layer of an adapter tensor, or the adapter has neither a base weight nor its hash.
        """
        reason = f"{self._base} is not the base of {self._adapter.folder}"
        names = {location.name for location in self._weights.tensors.values()}
        layers = {name.removesuffix(".weight") for name in names}
        for key in sorted(self._adapter_tensors):
            name = key.removeprefix(PREFIX)
            # Adapters store a tied output matrix, although the base does not.
            if name in names or name == "lm_head.weight":
                continue
            module, _, matrix = name.removesuffix(".weight").rpartition(".")
            if matrix not in MATRICES.values() or module not in layers:
                raise UserError(f"{reason}: it has no {name}: give the model that it was trained on")
        for name in sorted(names):
            if PREFIX + name not in self._adapter_tensors and name not in self._adapter.record.sha256:
                raise UserError(f"{reason}: that lacks {name}: give the model that it was trained on")

    def read(self, ours: str) -> Tensor:
        """Read a weight in float32: the trained one, or the base weight with its adapter merged.

        Args:
            ours: MegaTAPE's parameter name.

        Raises:
            UserError: The base weight has other values than when the adapter was trained.
        """
        name = self.name_of(ours)
        record = self._adapter.record
        shape = self._weights.tensors[ours].shape
        if PREFIX + name in self._adapter_tensors:
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
        if kind != "weight" or PREFIX + name_of_a not in self._adapter_tensors:
            return weight
        rows, columns = weight.shape
        a = self._trained(name_of_a, (self._adapter.rank, columns))
        b = self._trained(name_of_b, (rows, self._adapter.rank))
        return merged(weight, a, b, self._adapter.alpha, self._adapter.rank)

    def _trained(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read an adapter tensor in float32."""
        tensor: Tensor = self._file.get_tensor(PREFIX + name).float()
        if tuple(tensor.shape) != shape:
            raise UserError(
                f"{self._adapter.folder}: {name} has shape {tuple(tensor.shape)}, for {self._base} it is {shape}: {ADVICE}"
            )
        return tensor
