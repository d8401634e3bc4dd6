"""Exports the trained weights of a LoRA run for peft's PeftModel.from_pretrained(base, out).

peft is not used for writing the files, because it would need the whole base model in memory.
"""

from pathlib import Path

from torch import Tensor

from megatape.checkpoint.format.hashed_files import as_json, write_file
from megatape.checkpoint.format.tensors import save_tensors
from megatape.config import ModelConfig, TrainingConfig
from megatape.config.sections.run import Dtype
from megatape.errors import UserError, flag, path_errors
from megatape.hf.adapters.files import BASE, MATRICES, PREFIX, SETTINGS, WEIGHTS, AdapterBase, hash_of
from megatape.hf.dtypes import dtype_name, dtype_named, stored_dtype
from megatape.hf.families import family_of
from megatape.hf.families.family import Family
from megatape.hf.weights.checkpoint import Checkpoint, check_parameters
from megatape.hf.weights.weight_files import checked
from megatape.model.build import meta_model
from megatape.model.lora import TARGETS, in_adapter
from megatape.model.trainable import freeze
from megatape.utils.files.atomic import new_folder


@path_errors()
def export_adapter(checkpoint: Checkpoint, out: Path, dtype: Dtype | None = None) -> None:
    """Write a run's adapters, its other trained weights, and the hashes of its frozen weights.

    Args:
        checkpoint: Checkpoint of the run.
        out: Folder to write. It must not exist.
        dtype: Precision of the stored weights, by default the run's.

    Raises:
        FileExistsError: `out` exists.
        UserError: The run has no LoRA, trained a weight that has an adapter, or has values out of range for the precision.
    """
    config = checkpoint.config
    if config.model.lora is None:
        raise UserError(
            f"{checkpoint.directory} is from a run without model.lora, so it has no adapter: export it without "
            f"{flag('adapter')}"
        )
    shapes = check_parameters(checkpoint, config.model)
    family = family_of(config.model.without_adapters(), config.export.family)
    precision = stored_dtype(config.export, config.training)
    if dtype is not None:
        precision = dtype_named(dtype)
    saved_modules = _saved_modules(config.model, config.training, family)

    with new_folder(out) as folder:
        tensors: dict[str, Tensor] = {}
        hashes: dict[str, str] = {}
        for name in checkpoint.names():
            module = name.rpartition(".")[0]
            if in_adapter(name) or module in saved_modules:
                key = PREFIX + _peft_name(name, family)
                tensors[key] = checked(name, checkpoint.tensor(name), shapes[name], precision)
            else:
                key = family.parameter_name(name)
                hashes[key] = hash_of(name, checkpoint.tensor(name), shapes[name], precision)
        if config.model.tie_embeddings and "embedding" in saved_modules:
            # peft stores a tied matrix under both of its names.
            head = PREFIX + family.parameter_name("head.weight")
            embedding = PREFIX + family.parameter_name("embedding.weight")
            tensors[head] = tensors[embedding].clone()

        save_tensors(tensors, folder / WEIGHTS)
        settings = _settings(config.model, sorted(saved_modules.values()), family)
        write_file(folder / SETTINGS, [as_json(settings)])
        base = AdapterBase(format=1, trained_from=config.training.init_from, dtype=dtype_name(precision), sha256=hashes)
        write_file(folder / BASE, [as_json(base.model_dump())])


def _saved_modules(config: ModelConfig, training: TrainingConfig, family: Family) -> dict[str, str]:
    """Return the modules with trained weights, which peft stores completely: our path -> path in transformers."""
    model = meta_model(config)
    freeze(model, training.trainable, training.frozen)
    parameters = dict(model.named_parameters())
    saved = {}
    for name, parameter in parameters.items():
        if not parameter.requires_grad or in_adapter(name):
            continue
        module = name.rpartition(".")[0]
        if f"{module}.adapter.a" in parameters:
            raise UserError(
                f"training.trainable trains {name} beside the adapter of its layer, which peft's format cannot hold: "
                f"export without {flag('adapter')}"
            )
        saved[module] = family.parameter_name(name).rpartition(".")[0]
    return saved


def _peft_name(name: str, family: Family) -> str:
    """Return a parameter's name in peft's files, without PREFIX."""
    layer, adapter, matrix = name.partition(".adapter.")
    if not adapter:
        return family.parameter_name(name)
    module = family.parameter_name(f"{layer}.weight").rpartition(".")[0]
    return f"{module}.{MATRICES[matrix]}.weight"


def _settings(model: ModelConfig, saved_modules: list[str], family: Family) -> dict[str, object]:
    """Return the content of adapter_config.json."""
    lora = model.lora
    assert lora is not None
    target_modules = []
    for target in lora.targets:
        name = family.layer_name(f"{TARGETS[target]}.weight")
        target_modules.append(name.split(".")[-2])
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": target_modules,
        "modules_to_save": saved_modules or None,
        "ensure_weight_tying": model.tie_embeddings,
        "bias": "none",
        "inference_mode": True,
    }
