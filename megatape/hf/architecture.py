"""Reads the architecture of a transformers model as a model section.

The configuration of an installed class is filled from config.json. Instructions to transformers, such as code to run, are
ignored. Unsupported settings are errors before any tensor is read.
"""

from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedConfig

from megatape.config import ModelConfig, parse_model
from megatape.errors import MissingPath, UserError
from megatape.hf.config_json import CONFIG_ERRORS, error_summary, read_config
from megatape.hf.families import family_named
from megatape.hf.families.family import Family
from megatape.hf.weights.tensor_headers import INDEX, SINGLE, read_object
from megatape.imports import check_given
from megatape.registry import ENCODINGS

# File names of other weight formats -> description and remedy.
OTHER_FORMATS = {
    "pytorch_model*.bin": "pickled weights, and unpickling runs code: convert them on a machine that may run it, with "
    "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW)",
    "consolidated*.pth": "weights in Meta's layout: convert them with convert_llama_weights_to_hf.py of transformers",
    "*.gguf": "GGUF weights, which are converted or quantized: take the model's original folder",
    "adapter_config.json": "an adapter, no model: merge it into its base first",
}
# Settings of quantized models.
QUANTIZED = ("quantization_config", "compression_config")


class Architecture(NamedTuple):
    """A model that both transformers and MegaTAPE can run.

    Attributes:
        family: Model family.
        config: Configuration for transformers.
        model: Model section for MegaTAPE.
    """

    family: Family
    config: PreTrainedConfig
    model: ModelConfig


def read_architecture(folder: Path) -> Architecture:
    """Read the architecture of the model in a transformers folder from config.json.

    Raises:
        FileNotFoundError: The folder has no safetensors files or no config.json.
        UserError: A setting is not supported, or contradicts another one.
    """
    _check_layout(folder)
    path = folder / "config.json"
    if not path.is_file():
        raise MissingPath(f"{folder}: no config.json: give a folder as transformers' save_pretrained writes it")
    fields = read_object(path)
    if str(fields.get("encoding")) not in ENCODINGS:
        check_given(fields.get("imports"), path)
    try:
        family = _find_family(fields)
        config = read_config(family, fields)
        section = family.model_fields(config)
    except CONFIG_ERRORS as error:
        raise UserError(f"{path}: {error_summary(error)}") from None
    return Architecture(family, config, parse_model(section, str(path)))


def _check_layout(folder: Path) -> None:
    """Raise MissingPath if a folder has no safetensors files. The message names weights in other formats."""
    if not folder.is_dir():
        raise MissingPath(f"{folder}: no such folder")
    if (folder / SINGLE).exists() or (folder / INDEX).exists():
        return
    for pattern, description in OTHER_FORMATS.items():
        matches = sorted(folder.glob(pattern))
        if matches:
            raise MissingPath(f"{folder}: no {SINGLE}; {matches[0].name} holds {description}")
    raise MissingPath(f"{folder}: neither {SINGLE} nor {INDEX}: give a folder as transformers' save_pretrained writes it")


def _find_family(fields: dict[str, Any]) -> Family:
    """Return the model family for the fields of config.json. Raises UserError if there is none, or the model is quantized."""
    for name in QUANTIZED:
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
