"""Checks the fields in config.json, and makes a transformers configuration from them."""

from typing import Any

from transformers import PreTrainedConfig

from megatape.config.sections.run import DTYPES
from megatape.errors import UserError, marked_message
from megatape.hf.families.family import Family
from megatape.hf.families.llama_like import check_rotary_share
from megatape.hf.weights.tensor_headers import ADVICE

# Errors raised by transformers' configuration and model classes for meaningless values.
CONFIG_ERRORS = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RuntimeError, AssertionError)

# Largest number allowed in the config.json of an export.
MAX_NUMBER = 2**63 - 1
# Fields of an export that only from_pretrained uses.
IGNORED = {"auto_map"}
# Types that are checked, and their names in messages.
TYPE_NAMES: dict[type, str] = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}
TOKEN_FIELDS = ("bos_token_id", "eos_token_id", "pad_token_id")
# Fields that may be null, although their default is not.
OPTIONAL_FIELDS = ("sliding_window", "dtype")
# Fields written by transformers before version 5, which its classes still read.
EARLIER_FIELDS = {"rope_theta", "rope_scaling", "original_max_position_embeddings", "torch_dtype"}


def read_config(family: Family, fields: dict[str, Any]) -> PreTrainedConfig:
    """Make a transformers configuration from the fields in config.json.

    transformers interprets fields that the class does not declare as instructions, such as attn_implementation. In an export of
    MegaTAPE, such a field is an error. In other models, it is ignored, because other programs write such fields.

    Args:
        family: Model family.
        fields: Content of config.json.

    Raises:
        UserError: A field is not supported.
        Exception: The configuration class raises one of CONFIG_ERRORS for a meaningless value.
    """
    defaults = family.config_class().to_dict()
    declared = defaults.keys() | family.undeclared
    if family.remote_code:
        allowed = declared
        fields = {name: value for name, value in fields.items() if name not in IGNORED}
        _check_fields(fields, defaults)
        unknown = sorted(fields.keys() - declared)
        if unknown:
            raise UserError(f"key {unknown[0]} is not known to {family.config_class.__name__}")
    else:
        allowed = declared | EARLIER_FIELDS
        _check_rotary(fields)
    return family.config_class(**{name: value for name, value in fields.items() if name in allowed})


def error_summary(error: Exception) -> str:
    """Return the first line of an error message, or the error's type if the message is empty."""
    lines = marked_message(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[0]


def _check_fields(fields: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Raise UserError if a field in an export does not have its default's type."""
    values = list(fields.items())
    rope = fields.get("rope_parameters")
    if isinstance(rope, dict):
        values += rope.items()
    for name, value in values:
        if isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:
            raise UserError(f"{name} is {value}, beyond {MAX_NUMBER}: correct it there, or {ADVICE}")
        if name in TOKEN_FIELDS:
            _check_token(name, value)
            continue
        expected = type(defaults.get(name))
        if name == "rope_theta":
            expected = float
        if expected in TYPE_NAMES:
            _check_type(name, value, expected)
    dtype = fields.get("dtype", "float32")
    if dtype not in DTYPES:
        raise UserError(f"dtype is {dtype!r}, none of {', '.join(DTYPES)}")


def _check_token(name: str, value: Any) -> None:
    """Raise UserError unless the value is a token id, a list of token ids, or null."""
    tokens = value
    if not isinstance(value, list):
        tokens = [value]
    for token in tokens:
        if token is not None and type(token) is not int:
            raise UserError(f"{name} is {value!r:.40}, not a token id: correct it there, or {ADVICE}")


def _check_type(name: str, value: Any, expected: type) -> None:
    """Raise UserError if the value does not have the expected type. An integer is a valid float."""
    if type(value) is expected:
        return
    if expected is float and type(value) is int:
        return
    if value is None and name in OPTIONAL_FIELDS:
        return
    raise UserError(f"{name} is {value!r:.40}, not {TYPE_NAMES[expected]}: correct it there, or {ADVICE}")


def _check_rotary(fields: dict[str, Any]) -> None:
    """Raise UserError if rotary settings contradict each other.

    transformers 5 writes rope_parameters, earlier versions rope_theta and rope_scaling, and some folders have both.
    """
    new = fields.get("rope_parameters")
    old = fields.get("rope_scaling")
    base = fields.get("rope_theta")
    for name, rope in (("rope_parameters", new), ("rope_scaling", old)):
        if rope is None:
            continue
        if not isinstance(rope, dict):
            raise UserError(f"{name} is {rope!r}, not an object")
        if "type" in rope and rope.get("rope_type", rope["type"]) != rope["type"]:
            raise UserError(f"{name} has type {rope['type']!r} and rope_type {rope['rope_type']!r}: remove one")
        if rope and base is not None and rope.get("rope_theta", base) != base:
            raise UserError(f"rope_theta is {base} and in {name} {rope['rope_theta']}: remove one")
    if new and "rope_scaling" in fields and _scaling(new) != _scaling(old or {}):
        raise UserError(f"rope_parameters {new} and rope_scaling {old} contradict each other: remove one")

    check_rotary_share(fields)


def _scaling(rope: dict[str, Any]) -> dict[str, Any]:
    """Return the settings for scaling rotary frequencies, with the type under its current name."""
    settings = {name: value for name, value in rope.items() if name not in ("type", "rope_type", "rope_theta")}
    settings["rope_type"] = rope.get("rope_type", rope.get("type", "default"))
    return settings
