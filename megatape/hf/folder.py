"""Configuration, weights and tokenizer of an exported folder, which is data only: nothing in it is run, nothing is downloaded.

transformers' from_pretrained would follow what the folder names: code, adapters, kernels, repositories. So the installed classes
are filled from config.json, tokenizer.json and the safetensors files, and every key and tensor is checked.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.initialization import no_init_weights

from megatape.files import parse_json
from megatape.hf.families import family_named

LARGEST = 2**63 - 1  # of the numbers in config.json
DTYPES = ("float32", "bfloat16", "float16")
# Keys of config.json that say how from_pretrained finds code.
IGNORED = {"auto_map"}
# What megatape.hf.tokenizer.write_tokenizer writes, and the installed tokenizer is told; all else in the file is ignored.
TOKENIZER_SETTINGS: dict[str, type] = {
    "bos_token": str,
    "eos_token": str,
    "unk_token": str,
    "pad_token": str,
    "padding_side": str,
    "split_special_tokens": bool,
    "clean_up_tokenization_spaces": bool,
    "model_max_length": int,
}
_ADVICE = "export the checkpoint again, or copy the folder again"
# What the classes of transformers raise for values that make no sense.
_FAULTS = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RuntimeError, AssertionError)


def read_model(folder: Path) -> PreTrainedModel:
    """The model in `folder`, run by the installed class of its model_type, on the CPU.

    Raises FileNotFoundError for a missing file, ValueError for one that is corrupted: a tensor that is missing, unexpected, of
    another shape, or not finite."""
    config_path = folder / "config.json"
    fields = _read_object(config_path)
    try:
        model_class = family_named(fields.get("model_type")).model_class
        config = _config(model_class, fields)
    except _FAULTS as error:
        raise ValueError(f"{config_path}: {_reason(error)}: {_ADVICE}") from None
    files = _weight_files(folder)
    stored = {name: (path, shape) for path in files for name, shape in _shapes(path)}
    if config.num_hidden_layers > len(stored):
        raise ValueError(
            f"{config_path}: num_hidden_layers is {config.num_hidden_layers}, but the folder holds {len(stored)} tensors: {_ADVICE}"
        )
    try:
        with torch.device("meta"):  # shapes without memory: config.json may ask for any amount
            expected = _parameters(model_class(config))
    except _FAULTS as error:
        raise ValueError(f"{config_path}: {_reason(error)}: {_ADVICE}") from None
    for name in sorted(expected.keys() | stored.keys()):
        if name not in stored:
            raise ValueError(f"{folder}: no tensor {name} in its safetensors files: {_ADVICE}")
        path, shape = stored[name]
        if name not in expected:
            raise ValueError(f"{path}: tensor {name} belongs to no parameter of the model: {_ADVICE}")
        if shape != tuple(expected[name].shape):
            raise ValueError(
                f"{path}: tensor {name} has shape {shape}, by config.json it is {tuple(expected[name].shape)}: {_ADVICE}"
            )
    with no_init_weights():
        model: PreTrainedModel = model_class._from_config(config)
    parameters = _parameters(model)
    for path in files:
        for name, tensor in _tensors(path):
            value = tensor.to(parameters[name].dtype)
            if not value.isfinite().all():
                raise ValueError(f"{path}: tensor {name} has values that are NaN or infinite: {_ADVICE}")
            parameters[name].data.copy_(value)
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id, do_sample=False
    )
    return model.eval()


def read_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer in `folder`. Raises FileNotFoundError or ValueError for a missing or corrupted file."""
    path, settings_path = folder / "tokenizer.json", folder / "tokenizer_config.json"
    settings = {}
    for name, value in _read_object(settings_path).items():
        if name in TOKENIZER_SETTINGS:
            if not isinstance(value, TOKENIZER_SETTINGS[name]):
                raise ValueError(f"{settings_path}: {name} is {value!r}, not {TOKENIZER_SETTINGS[name].__name__}: {_ADVICE}")
            settings[name] = value
    text = path.read_bytes()
    try:
        tokenizer = Tokenizer.from_buffer(text)
    except Exception as error:  # noqa: BLE001 (tokenizers raises nothing more specific)
        raise ValueError(f"{path}: not a tokenizer ({error}): {_ADVICE}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings)


def _reason(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}): {_ADVICE}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: not a JSON object: {_ADVICE}")
    return found


def _config(model_class: type[PreTrainedModel], fields: dict[str, Any]) -> PreTrainedConfig:
    """The configuration with these fields. A key that the class does not have would be taken by transformers for an instruction."""
    config_class = model_class.config_class
    assert config_class is not None
    fields = {name: value for name, value in fields.items() if name not in IGNORED}
    if unknown := sorted(fields.keys() - config_class().to_dict().keys()):
        raise ValueError(f"key {unknown[0]} is not known to {config_class.__name__}")
    for name, value in fields.items():
        if isinstance(value, int | float) and not abs(value) <= LARGEST:
            raise ValueError(f"{name} is {value}, beyond {LARGEST}")
    if fields.get("dtype", "float32") not in DTYPES:
        raise ValueError(f"dtype is {fields['dtype']!r}, none of {', '.join(DTYPES)}")
    config: PreTrainedConfig = config_class(**fields)
    return config


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        listed = _read_object(index).get("weight_map")
        if not isinstance(listed, dict) or not listed or not all(isinstance(name, str) for name in listed.values()):
            raise ValueError(f"{index}: no weight_map of tensors and files: {_ADVICE}")
        names = sorted(set(listed.values()))
        for name in names:
            if Path(name).name != name:
                raise ValueError(f"{index}: {name!r} is not a plain file name: {_ADVICE}")
    for name in names:
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder}: no {name}: {_ADVICE}")
    return [folder / name for name in names]


def _shapes(path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                yield name, tuple(file.get_slice(name).get_shape())
    except SafetensorError as error:
        raise ValueError(f"{path}: not a safetensors file ({error}): {_ADVICE}") from None


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (no mapping)
            yield name, file.get_tensor(name)


def _parameters(model: PreTrainedModel) -> dict[str, Tensor]:
    """The parameters under the names that the files have: a tied one once."""
    model.tie_weights()
    return dict(model.named_parameters())
