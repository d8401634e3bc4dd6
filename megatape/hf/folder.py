"""Configuration, weights and tokenizer of an exported folder, which is data only: nothing in it is run, nothing is downloaded.

transformers' from_pretrained would follow what the folder names: code, adapters, kernels, repositories. So the installed
classes are filled from config.json, tokenizer.json and the safetensors files, and every key and tensor is checked.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.initialization import no_init_weights

from megatape.config.export import DTYPES
from megatape.data.tokenizers.files import json_tokenizer
from megatape.data.tokenizers.tokenizer import JSON_FILE
from megatape.errors import UserError
from megatape.hf.families import family_named
from megatape.hf.families.family import Family
from megatape.hf.stored import ADVICE, read_object, stored_tensors
from megatape.imports import check_given
from megatape.registry import ENCODINGS

LARGEST = 2**63 - 1  # of the numbers in config.json
# Keys of config.json that say how from_pretrained finds code.
IGNORED = {"auto_map"}
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
OPTIONAL = ("sliding_window", "dtype")  # null, whatever the class has by default
# What the classes of transformers raise for values that make no sense.
FAULTS = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RuntimeError, AssertionError)


def read_model(folder: Path) -> PreTrainedModel:
    """The model in `folder`, run by the installed class of its model_type, on the CPU.

    Raises FileNotFoundError for a missing file, UserError for one that is corrupted: a tensor that is missing, unexpected, of
    another shape, or not finite.
    """
    config_path = folder / "config.json"
    fields = read_object(config_path)
    if str(fields.get("encoding")) not in ENCODINGS:
        check_given(fields.get("imports"), config_path)
    try:
        family = family_named(fields.get("model_type"))
        config = read_config(family, fields)
    except FAULTS as error:
        raise UserError(f"{config_path}: {reason(error)}: {ADVICE}") from None
    model_class, stored = family.model_class, stored_tensors(folder)
    if not (isinstance(config.num_hidden_layers, int) and config.num_hidden_layers <= len(stored)):
        raise UserError(
            f"{config_path}: num_hidden_layers is {config.num_hidden_layers}, but the folder holds {len(stored)} tensors: "
            f"{ADVICE}"
        )
    try:
        with torch.device("meta"):  # shapes without memory: config.json may ask for any amount
            expected = _parameters(model_class(config))
    except FAULTS as error:
        raise UserError(f"{config_path}: {reason(error)}: {ADVICE}") from None
    for name in sorted(expected.keys() | stored.keys()):
        if name not in stored:
            raise UserError(f"{folder}: no tensor {name} in its safetensors files: {ADVICE}")
        path, shape, _ = stored[name]
        if name not in expected:
            raise UserError(f"{path}: tensor {name} belongs to no parameter of the model: {ADVICE}")
        if shape != tuple(expected[name].shape):
            raise UserError(
                f"{path}: tensor {name} has shape {shape}, by config.json it is {tuple(expected[name].shape)}: {ADVICE}"
            )
    with no_init_weights():
        model: PreTrainedModel = model_class._from_config(config)
    parameters = _parameters(model)
    for path in sorted({entry.path for entry in stored.values()}):
        for name, tensor in _tensors(path):
            value = tensor.to(parameters[name].dtype)
            if not value.isfinite().all():
                raise UserError(f"{path}: tensor {name} has values that are NaN or infinite: {ADVICE}")
            parameters[name].data.copy_(value)
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id, do_sample=False
    )
    return model.eval()


def read_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer in `folder`, with the ids of training: special tokens in a text are text, and texts begin as documents did.

    Raises FileNotFoundError or UserError for a missing or corrupted file.
    """
    tokenizer = json_tokenizer(folder / JSON_FILE)
    limit = tokenizer.declared.get("model_max_length")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend,
        bos_token=None if tokenizer.bos_id is None else tokenizer.piece(tokenizer.bos_id),
        eos_token=tokenizer.piece(tokenizer.eos_id),
        unk_token=tokenizer.special_token("unk"),
        pad_token=tokenizer.special_token("pad"),
        add_bos_token=tokenizer.bos_id is not None,
        add_eos_token=False,
        padding_side="left",
        model_max_length=limit if type(limit) is int else None,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


def reason(error: BaseException) -> str:
    """The first line of an exception's text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def read_config(family: Family, fields: dict[str, Any]) -> PreTrainedConfig:
    """The configuration with these fields.

    A key that the class does not have would be taken by transformers for an instruction.

    Raises UserError, or what the class raises for values that make no sense.
    """
    config_class = family.config_class
    fields = {name: value for name, value in fields.items() if name not in IGNORED}
    defaults = config_class().to_dict()
    if unknown := sorted(fields.keys() - defaults.keys() - family.undeclared):
        raise UserError(f"key {unknown[0]} is not known to {config_class.__name__}")
    rope = fields.get("rope_parameters")
    for name, value in [*fields.items(), *(rope.items() if isinstance(rope, dict) else ())]:
        if isinstance(value, int | float) and not abs(value) <= LARGEST:
            raise UserError(f"{name} is {value}, beyond {LARGEST}")
        wanted = float if name == "rope_theta" else type(defaults.get(name))
        if name in TOKENS:
            fits = all(token is None or type(token) is int for token in (value if isinstance(value, list) else [value]))
        elif wanted in (bool, int, float, str):
            fits = type(value) is wanted or (wanted is float and type(value) is int) or (value is None and name in OPTIONAL)
        else:
            continue
        if not fits:
            raise UserError(f"{name} is {value!r:.40}, no {'token' if name in TOKENS else wanted.__name__}")
    if fields.get("dtype", "float32") not in DTYPES:
        raise UserError(f"dtype is {fields['dtype']!r}, none of {', '.join(DTYPES)}")
    return config_class(**fields)


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (no mapping)
            yield name, file.get_tensor(name)


def _parameters(model: PreTrainedModel) -> dict[str, Tensor]:
    """The parameters under the names that the files have: a tied one once."""
    model.tie_weights()
    return dict(model.named_parameters())
