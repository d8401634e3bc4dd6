"""The model in a folder of transformers, in our terms; what we do not have is refused by name before any tensor is read."""

from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedConfig

from megatape.config import ModelConfig, parse_model
from megatape.errors import MissingPath, UserError
from megatape.hf.families import family_named
from megatape.hf.families.family import Family
from megatape.hf.folder import FAULTS, reason
from megatape.hf.stored import INDEX, SINGLE, read_object
from megatape.registry import FAMILIES

# Files that show how a folder without safetensors holds its weights, and what to do with it.
_LAYOUTS = {
    "pytorch_model*.bin": "pickled weights, and unpickling runs code: convert them on a machine that may run it, by "
    "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW)",
    "consolidated*.pth": "weights in Meta's layout: convert them with convert_llama_weights_to_hf.py of transformers",
    "*.gguf": "GGUF weights, which are converted or quantized: take the model's original folder",
    "adapter_config.json": "an adapter, no model: merge it into its base first",
}
# Fields of transformers before version 5, which its classes still read.
_EARLIER = {"rope_theta", "rope_scaling", "original_max_position_embeddings", "torch_dtype"}
_QUANTIZED = ("quantization_config", "compression_config")


class Architecture(NamedTuple):
    """A model that transformers runs and so do we.

    theirs: its configuration; model: the same as our model section; window: the last tokens that it attends to, None for
    all.
    """

    family: Family
    theirs: PreTrainedConfig
    model: ModelConfig
    window: int | None


def read_architecture(folder: Path) -> Architecture:
    """The model that config.json in `folder` describes.

    Raises FileNotFoundError for a folder without safetensors or config.json, UserError naming what is not supported or
    contradicts.
    """
    _check_layout(folder)
    path = folder / "config.json"
    if not path.is_file():
        raise MissingPath(f"{folder}: no config.json: give a folder as transformers' save_pretrained writes it")
    fields = read_object(path)
    try:
        family = _family(fields)
        _check_rotary(fields)
        theirs = _config(family, fields)
        section, window = family.model_fields(theirs), family.window(theirs)
    except FAULTS as error:
        raise UserError(f"{path}: {reason(error)}") from None
    return Architecture(family, theirs, parse_model(section, str(path)), window)


def _check_layout(folder: Path) -> None:
    if not folder.is_dir():
        raise MissingPath(f"{folder}: no such folder")
    if (folder / SINGLE).exists() or (folder / INDEX).exists():
        return
    for pattern, fault in _LAYOUTS.items():
        if found := sorted(folder.glob(pattern)):
            raise MissingPath(f"{folder}: no {SINGLE}; {found[0].name} holds {fault}")
    raise MissingPath(f"{folder}: neither {SINGLE} nor {INDEX}: give a folder as transformers' save_pretrained writes it")


def _family(fields: dict[str, Any]) -> Family:
    for name in _QUANTIZED:
        if fields.get(name) is not None:
            raise UserError(f"{name} is set: quantized weights cannot be trained, take the model's unquantized folder")
    known = {family.model_class.__name__: family for family in map(family_named, FAMILIES)}
    names = fields.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in known:
        raise UserError(f"architectures is {names!r}: only one of {', '.join(known)} is supported")
    family = known[names[0]]
    if fields.get("model_type") != family.config_class.model_type:
        raise UserError(f"model_type is {fields.get('model_type')!r}, but architectures is {names!r}")
    if "auto_map" in fields and not family.remote_code:
        raise UserError("auto_map names code of the folder, which is not run: its model may be another than transformers' own")
    return family


def _config(family: Family, fields: dict[str, Any]) -> PreTrainedConfig:
    """The configuration with those of the fields that the class declares.

    Its code ignores the others, but transformers itself may follow one, such as attn_implementation.
    """
    declared = family.config_class().to_dict().keys() | family.undeclared | _EARLIER
    return family.config_class(**{name: value for name, value in fields.items() if name in declared})


def _check_rotary(fields: dict[str, Any]) -> None:
    """Refuse rotary settings that say two things.

    transformers 5 writes rope_parameters, earlier versions rope_theta and rope_scaling, and some folders hold both.
    """
    new, old, base = fields.get("rope_parameters"), fields.get("rope_scaling"), fields.get("rope_theta")
    for name, rope in (("rope_parameters", new), ("rope_scaling", old)):
        if rope is not None and not isinstance(rope, dict):
            raise UserError(f"{name} is {rope!r}, not an object")
        if rope and "type" in rope and rope.get("rope_type", rope["type"]) != rope["type"]:
            raise UserError(f"{name} has type {rope['type']!r} and rope_type {rope['rope_type']!r}: remove one")
        if rope and base is not None and rope.get("rope_theta", base) != base:
            raise UserError(f"rope_theta is {base} and in {name} {rope['rope_theta']}: remove one")
    if new and "rope_scaling" in fields and _scaling(new) != _scaling(old or {}):
        raise UserError(f"rope_parameters {new} and rope_scaling {old} contradict each other: remove one")
    if fields.get("partial_rotary_factor") not in (None, 1):
        raise UserError(
            f"partial_rotary_factor is {fields['partial_rotary_factor']}: heads that rotate in part are not supported"
        )


def _scaling(rope: dict[str, Any]) -> dict[str, Any]:
    settings = {name: value for name, value in rope.items() if name not in ("type", "rope_type", "rope_theta")}
    return settings | {"rope_type": rope.get("rope_type", rope.get("type", "default"))}
