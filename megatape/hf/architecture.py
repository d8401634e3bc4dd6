"""The model in a folder of transformers as a model section; unsupported settings are errors before any tensor is read.

config.json fills the configuration of an installed class. What it tells transformers to do is not followed.
"""

from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedConfig

from megatape.config import ModelConfig, parse_model
from megatape.config.run import DTYPES
from megatape.errors import MissingPath, UserError
from megatape.hf.families import family_named
from megatape.hf.families.family import Family
from megatape.hf.tensor_headers import INDEX, SINGLE, read_object
from megatape.imports import check_given
from megatape.registry import ENCODINGS

# Files that show how a folder without safetensors holds its weights, and what to do with it.
_LAYOUTS = {
    "pytorch_model*.bin": "pickled weights, and unpickling runs code: convert them on a machine that may run it, by "
    "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW)",
    "consolidated*.pth": "weights in Meta's layout: convert them with convert_llama_weights_to_hf.py of transformers",
    "*.gguf": "GGUF weights, which are converted or quantized: take the model's original folder",
    "adapter_config.json": "an adapter, no model: merge it into its base first",
}
_QUANTIZED = ("quantization_config", "compression_config")

# What the classes of transformers raise for values that make no sense.
FAULTS = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RuntimeError, AssertionError)

_LARGEST = 2**63 - 1  # of the numbers in config.json
_IGNORED = {"auto_map"}  # says how from_pretrained finds code
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_OPTIONAL = ("sliding_window", "dtype")  # null, whatever the class has by default
# Fields of transformers before version 5, which its classes still read.
_EARLIER = {"rope_theta", "rope_scaling", "original_max_position_embeddings", "torch_dtype"}


class Architecture(NamedTuple):
    """A model that both transformers and MegaTAPE run.

    Attributes:
        family: its architecture.
        config: its configuration in transformers.
        model: the same as a model section.
        window: the last tokens that it attends to, None for all.
    """

    family: Family
    config: PreTrainedConfig
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
    if str(fields.get("encoding")) not in ENCODINGS:
        check_given(fields.get("imports"), path)
    try:
        family = _family(fields)
        config = read_config(family, fields)
        section = family.model_fields(config)
        window = family.window(config)
    except FAULTS as error:
        raise UserError(f"{path}: {reason(error)}") from None
    return Architecture(family, config, parse_model(section, str(path)), window)


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
    family = family_named(fields.get("model_type"))
    names = fields.get("architectures")
    supported = family.model_class.__name__
    if names != [supported]:
        raise UserError(
            f"model_type is {fields['model_type']!r}, but architectures is {names!r}: only {supported} is supported"
        )
    if "auto_map" in fields and not family.remote_code:
        raise UserError("auto_map names code of the folder, which is not run: its model may be another than transformers' own")
    return family


def reason(error: BaseException) -> str:
    """The first line of an exception's text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def read_config(family: Family, fields: dict[str, Any]) -> PreTrainedConfig:
    """The configuration with the fields of a config.json.

    transformers would take a key that the class does not declare for an instruction, such as attn_implementation. An export
    of MegaTAPE has no such key; those that other programs write into the folders of other models are left out.

    Raises:
        UserError: naming the field, or what the class raises for values that make no sense.
    """
    defaults = family.config_class().to_dict()
    declared = defaults.keys() | family.undeclared
    if family.remote_code:
        fields = {name: value for name, value in fields.items() if name not in _IGNORED}
        _check_fields(fields, defaults)
        if unknown := sorted(fields.keys() - declared):
            raise UserError(f"key {unknown[0]} is not known to {family.config_class.__name__}")
    else:
        _check_rotary(fields)
        fields = {name: value for name, value in fields.items() if name in declared | _EARLIER}
    return family.config_class(**fields)


def _check_fields(fields: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Refuse values of another type than the class's defaults."""
    rope = fields.get("rope_parameters")
    for name, value in [*fields.items(), *(rope.items() if isinstance(rope, dict) else ())]:
        if isinstance(value, int | float) and not abs(value) <= _LARGEST:
            raise UserError(f"{name} is {value}, beyond {_LARGEST}")
        wanted = float if name == "rope_theta" else type(defaults.get(name))
        if name in _TOKENS:
            fits = all(token is None or type(token) is int for token in (value if isinstance(value, list) else [value]))
        elif wanted in (bool, int, float, str):
            fits = type(value) is wanted or (wanted is float and type(value) is int) or (value is None and name in _OPTIONAL)
        else:
            continue
        if not fits:
            raise UserError(f"{name} is {value!r:.40}, no {'token' if name in _TOKENS else wanted.__name__}")
    if fields.get("dtype", "float32") not in DTYPES:
        raise UserError(f"dtype is {fields['dtype']!r}, none of {', '.join(DTYPES)}")


def _check_rotary(fields: dict[str, Any]) -> None:
    """Refuse rotary settings that say two things.

    transformers 5 writes rope_parameters, earlier versions rope_theta and rope_scaling, and some folders hold both.
    """
    new = fields.get("rope_parameters")
    old = fields.get("rope_scaling")
    base = fields.get("rope_theta")
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
