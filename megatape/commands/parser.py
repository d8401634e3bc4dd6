"""Parsers of commands from their options."""

import argparse
from typing import Any, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from megatape.config.section import choices, unwrapped
from megatape.options import CommandOptions, argument_of


def add_options(parser: argparse.ArgumentParser, kind: type[CommandOptions]) -> None:
    """Declare the options of a command. argparse leaves their values as text; their types check it (`read_options`)."""
    described = {name: field for name, field in kind.model_fields.items() if field.description is not None}
    groups = {name: names for names in (*kind.at_most_one, *kind.exactly_one) for name in names}
    for name in described:
        names = groups.get(name, (name,))
        target: argparse._ActionsContainer = parser
        if name != names[0]:
            continue  # it is declared beside the first of its group, so that the usage shows the group
        if name in groups:
            target = parser.add_mutually_exclusive_group(required=names in kind.exactly_one)
        for each in names:
            target.add_argument(flag_of(each, described[each]) or each, **_arguments(each, described[each]))


def flag_of(name: str, field: FieldInfo) -> str | None:
    """The flag of an option, None if it is given by its position."""
    argument = argument_of(field)
    return None if argument.get("positional") else argument.get("flag") or f"--{name.replace('_', '-')}"


def default_of(field: FieldInfo) -> str:
    """The default of an option as one would write it, empty if there is none."""
    if field.is_required() or field.default in (None, False, ()):
        return ""
    return ",".join(map(str, field.default)) if isinstance(field.default, tuple) else str(field.default)


def metavar_of(field: FieldInfo) -> str | None:
    """What stands for the value of an option in its usage, None for the name of the option."""
    values = choices(field.annotation, field.metadata)
    return argument_of(field).get("metavar") or (f"{{{','.join(values)}}}" if values else None)


def _arguments(name: str, field: FieldInfo) -> dict[str, Any]:
    """Keywords of argparse's add_argument."""
    argument, (annotation, metadata) = argument_of(field), unwrapped(field.annotation, field.metadata)
    text = f"{field.description} (default {default})" if (default := default_of(field)) else str(field.description)
    words: dict[str, Any] = {"default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
    if annotation is bool:
        return {**words, "action": "store_true"}
    words["metavar"] = metavar_of(field)
    if argument.get("repeatable"):
        words["action"] = "append"
    elif get_origin(annotation) is tuple and not any(isinstance(each, BeforeValidator) for each in metadata):
        words["nargs"] = "+" if field.is_required() or not argument.get("positional") else "*"
    if not argument.get("positional"):
        words |= {"required": field.is_required(), "dest": name}
    return words | {key: argument[key] for key in ("nargs", "const") if key in argument}
