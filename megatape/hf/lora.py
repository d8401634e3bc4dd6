"""LoRA adapters in exports: merged into their layers, or as the files of peft, which are merged into their base here.

The files are written without peft, which would need the whole base in memory to write them. Nor is peft's merge_and_unload
used: it knows no base by its hashes, and holds all of it in memory instead of one shard.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor

from megatape.accounting.counts import meta_model
from megatape.checkpoint.manifest import as_json, write_file
from megatape.checkpoint.tensors import save_tensors
from megatape.config import Config, ModelConfig, Section
from megatape.config.run import Dtype
from megatape.errors import MissingPath, UserError, content_errors, path_errors
from megatape.hf.architecture import read_architecture
from megatape.hf.checkpoint_source import Checkpoint, check_parameters
from megatape.hf.dtypes import dtype_name, stored_dtype
from megatape.hf.families import family_of
from megatape.hf.families.family import Family
from megatape.hf.folder_weights import find_weights
from megatape.hf.tensor_headers import read_object
from megatape.hf.weight_files import checked, write_weights
from megatape.model.lora import TARGETS, in_adapter
from megatape.model.trainable import freeze
from megatape.utils.files import new_folder

PREFIX = "base_model.model."  # of every name in peft's files
BASE = "base.json"  # of an adapter: the frozen weights that it belongs to
WEIGHTS = "adapter_model.safetensors"
SETTINGS = "adapter_config.json"
MATRICES = {"a": "lora_A", "b": "lora_B"}
_ADVICE = "export the adapter again"


def without_adapters(config: Config) -> Config:
    """The configuration of the same model without LoRA."""
    return config.model_copy(update={"model": config.model.model_copy(update={"lora": None})})


def merged_weight(checkpoint: Checkpoint, name: str) -> Tensor:
    """A weight of a checkpoint with the adapter of its layer, if it has one, added in float32."""
    weight = checkpoint.tensor(name)
    lora = checkpoint.config.model.lora
    layer, _, kind = name.rpartition(".")
    if lora is None or kind != "weight" or f"{layer}.adapter.a" not in checkpoint.names():
        return weight
    a, b = (checkpoint.tensor(f"{layer}.adapter.{matrix}") for matrix in MATRICES)
    return merged(weight, a, b, lora.alpha, lora.rank)


def merged(weight: Tensor, a: Tensor, b: Tensor, alpha: float, rank: int) -> Tensor:
    """The weight of a layer with its adapter: W + (alpha / rank) B A."""
    return weight + alpha / rank * (b @ a)


@path_errors()
def export_adapter(checkpoint: Checkpoint, out: Path) -> None:
    """Write what the run trained into the new folder `out`, as peft's PeftModel.from_pretrained(base, out) reads it.

    Also writes the hash of each weight that the run did not train, as the base has it.

    Raises FileExistsError if `out` exists, and UserError for a run without LoRA, one that trained weights which have an
    adapter, or a precision that cannot hold a value.
    """
    config = checkpoint.config
    if config.model.lora is None:
        raise UserError(
            f"{checkpoint.directory} is of a run without model.lora, so it has no adapter: export it without `adapter`"
        )
    shapes = check_parameters(checkpoint)
    family = family_of(without_adapters(config))
    saved = _saved_modules(config, family)
    names = [name for name in checkpoint.names() if in_adapter(name) or name.rpartition(".")[0] in saved]
    with new_folder(out) as folder:
        tensors = {
            PREFIX + _peft_name(name, family): checked(name, checkpoint.tensor(name), shapes[name], stored_dtype(config))
            for name in names
        }
        if config.model.tie_embeddings and "embedding" in saved:  # peft stores both ends of the tie
            head, embedding = (PREFIX + family.parameter_name(f"{name}.weight") for name in ("head", "embedding"))
            tensors[head] = tensors[embedding].clone()
        save_tensors(tensors, folder / WEIGHTS)
        settings = _adapter_config(config.model, sorted(saved.values()), family)
        write_file(folder / SETTINGS, [as_json(settings)])
        dtype = stored_dtype(config)
        hashes = {
            family.parameter_name(name): hash_of(name, checkpoint.tensor(name), shapes[name], dtype)
            for name in checkpoint.names()
            if name not in names
        }
        record = {"format": 1, "trained_from": config.training.init_from, "dtype": dtype_name(dtype)}
        write_file(folder / BASE, [as_json(record | {"sha256": hashes})])


def hash_of(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """The sha256 of a tensor's values as an export in this precision stores them. Raises UserError as `checked` does."""
    stored = checked(name, tensor, shape, dtype)
    return hashlib.sha256(stored.reshape(-1).view(torch.uint8).numpy().data).hexdigest()


def _saved_modules(config: Config, family: Family) -> dict[str, str]:
    """The modules that peft stores whole because a weight of theirs was trained: our path -> theirs."""
    model = meta_model(config.model)
    freeze(model, config.training.trainable, config.training.frozen)
    parameters = dict(model.named_parameters())
    saved = {}
    for name, parameter in parameters.items():
        module = name.rpartition(".")[0]
        if parameter.requires_grad and not in_adapter(name):
            if f"{module}.adapter.a" in parameters:
                raise UserError(
                    f"training.trainable trains {name} beside the adapter of its layer, which peft's format cannot hold: "
                    "export without `adapter`"
                )
            saved[module] = family.parameter_name(name).rpartition(".")[0]
    return saved


def _peft_name(name: str, family: Family) -> str:
    layer, adapter, matrix = name.partition(".adapter.")
    if not adapter:
        return family.parameter_name(name)
    module = family.parameter_name(f"{layer}.weight").rpartition(".")[0]
    return f"{module}.{MATRICES[matrix]}.weight"


def _adapter_config(model: ModelConfig, saved: list[str], family: Family) -> dict[str, object]:
    assert model.lora is not None
    targets = [family.layer_name(f"{TARGETS[target]}.weight").split(".")[-2] for target in model.lora.targets]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": model.lora.rank,
        "lora_alpha": model.lora.alpha,
        "lora_dropout": model.lora.dropout,
        "target_modules": targets,
        "modules_to_save": saved or None,
        "ensure_weight_tying": model.tie_embeddings,
        "bias": "none",
        "inference_mode": True,
    }


class _Record(Section):
    """base.json. sha256: of every weight that was not trained, under its name in transformers."""

    format: Literal[1]
    trained_from: str | None
    dtype: Dtype
    sha256: dict[str, str]


@path_errors()
def merge_adapter(adapter: Path, base: Path, out: Path) -> None:
    """Write the folder `base` with the adapter merged into its weights, as the new folder `out`.

    Sums are in float32 and stored in the adapter's precision. Raises FileExistsError if `out` exists, FileNotFoundError or
    UserError for a folder that is no adapter of `megatape export`, and for another base.
    """
    if not (adapter / BASE).is_file():
        raise MissingPath(f"{adapter}: no {BASE}, so it is no adapter that `megatape export --adapter` wrote")
    settings = read_object(adapter / SETTINGS)
    with content_errors(f"{adapter}: not what `megatape export --adapter` writes", _ADVICE, (ValueError, KeyError, TypeError)):
        record = _Record.model_validate(read_object(adapter / BASE))
        alpha = float(settings["lora_alpha"])
        rank = int(settings["r"])
    dtype = getattr(torch, record.dtype)
    found = read_architecture(base)
    weights = find_weights(base, found.model, found.family)
    names = {ours: stored.name for ours, stored in weights.tensors.items()}
    shapes = weights.shapes()
    with safe_open(adapter / WEIGHTS, framework="pt") as file, new_folder(out) as folder:
        held = set(file.keys())
        _check_names(adapter, base, held, set(names.values()), record)

        def trained(name: str, shape: tuple[int, ...]) -> Tensor:
            tensor: Tensor = file.get_tensor(PREFIX + name).float()
            if tuple(tensor.shape) != shape:
                raise UserError(f"{adapter}: {name} has shape {tuple(tensor.shape)}, for {base} it is {shape}: {_ADVICE}")
            return tensor

        def read(ours: str) -> Tensor:
            name = names[ours]
            if PREFIX + name in held:
                return trained(name, shapes[ours])
            weight = weights.tensor(ours)
            if hash_of(ours, weight, shapes[ours], dtype) != record.sha256[name]:
                raise UserError(
                    f"{base} is not the base of {adapter}, which was trained from {record.trained_from}: {name} has other "
                    f"values in {record.dtype}. Give the folder that it was trained from, or what `megatape export "
                    "--without-adapter` writes for the same checkpoint and precision"
                )
            module, _, kind = name.rpartition(".")
            parts = {matrix: f"{module}.{part}.weight" for matrix, part in MATRICES.items()}
            if kind != "weight" or PREFIX + parts["a"] not in held:
                return weight
            rows, columns = weight.shape
            a = trained(parts["a"], (rank, columns))
            b = trained(parts["b"], (rows, rank))
            return merged(weight, a, b, alpha, rank)

        write_weights(folder, shapes, dtype, read, names.__getitem__)
        for path in sorted(base.iterdir()):
            if path.is_file() and ".safetensors" not in path.name and path.name != "config.json":
                shutil.copyfile(path, folder / path.name)
        fields: dict[str, Any] = read_object(base / "config.json")
        fields.pop("torch_dtype", None)
        write_file(folder / "config.json", [as_json(fields | {"dtype": record.dtype})])


def _check_names(adapter: Path, base: Path, held: set[str], names: set[str], record: _Record) -> None:
    """Raise UserError naming a tensor that keeps the adapter from fitting onto the base."""
    layers = {name.removesuffix(".weight") for name in names}
    for key in sorted(held):
        name = key.removeprefix(PREFIX)
        if name not in names and name != "lm_head.weight":  # of a tied output matrix
            module, _, part = name.removesuffix(".weight").rpartition(".")
            if part not in MATRICES.values() or module not in layers:
                raise UserError(f"{base} is not the base of {adapter}: it has no {name}: give the model that it was trained on")
    if unknown := sorted(name for name in names if PREFIX + name not in held and name not in record.sha256):
        raise UserError(f"{base} is not the base of {adapter}: that lacks {unknown[0]}: give the model that it was trained on")
