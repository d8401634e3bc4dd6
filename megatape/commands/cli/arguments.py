"""Builds argparse arguments from the fields of a command's options."""

import argparse
from typing import Any, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from megatape.commands.cli.parser import Parser
from megatape.config.fields.annotations import choices, unwrapped
from megatape.utils.values.options import CommandOptions, form_of


def add_options(parser: Parser, kind: type[CommandOptions]) -> None:
    """Declare the options of a command. argparse leaves values as text, and `read_options` checks their types.

    Args:
        parser: Parser of the command.
        kind: Type of its options. Hidden fields are skipped.
    """
    fields: dict[str, FieldInfo] = {}
    for name, field in kind.model_fields.items():
        if not form_of(field).hidden:
            fields[name] = field
    group_of: dict[str, tuple[str, ...]] = {}
    for group in (*kind.at_most_one, *kind.exactly_one):
        for name in group:
            group_of[name] = group

    for name, field in fields.items():
        group = group_of.get(name, ())
        if not group:
            _add_option(parser, parser, name, field)
        elif name == group[0]:
            # Declare the whole group with its first option, so that the usage shows the group.
            container = parser.add_mutually_exclusive_group(required=group in kind.exactly_one)
            for member in group:
                _add_option(parser, container, member, fields[member])


def _add_option(parser: Parser, container: argparse._ActionsContainer, name: str, field: FieldInfo) -> None:
    """Declare one option in a container: the parser, or one of its groups."""
    name_or_flag = flag_of(name, field) or name
    action = container.add_argument(name_or_flag, **_keywords(name, field))
    parser.options.append(action)
    parser.completions[action.dest] = form_of(field).completions


def flag_of(name: str, field: FieldInfo) -> str | None:
    """Return the flag of an option, None if it is positional."""
    form = form_of(field)
    if form.positional:
        return None
    words = name.replace("_", "-")
    return form.flag or f"--{words}"


def default_of(field: FieldInfo) -> str | None:
    """Return the default of an option as a user would write it, or None if it has none."""
    if field.is_required() or field.default in (None, False, (), ""):
        return None
    if isinstance(field.default, tuple):
        return ",".join(str(value) for value in field.default)
    return str(field.default)


def metavar_of(field: FieldInfo) -> str | None:
    """Return the placeholder for an option's value in the usage. None: argparse uses the option's name."""
    metavar = form_of(field).metavar
    if metavar:
        return metavar
    values = choices(field.annotation, field.metadata)
    if not values:
        return None
    names = ",".join(values)
    return f"{{{names}}}"


def _keywords(name: str, field: FieldInfo) -> dict[str, Any]:
    """Return the keyword arguments of argparse's `add_argument`."""
    form = form_of(field)
    annotation, metadata = unwrapped(field.annotation, field.metadata)

    text = str(field.description)
    default = default_of(field)
    if default is not None:
        text += f" (default {default})"
    keywords: dict[str, Any] = {
        "default": argparse.SUPPRESS,
        "help": text.replace("%", "%%"),
    }
    if annotation is bool:
        keywords["action"] = "store_true"
        return keywords

    keywords["metavar"] = metavar_of(field)
    has_comma_syntax = any(isinstance(entry, BeforeValidator) for entry in metadata)
    if form.repeatable:
        keywords["action"] = "append"
    elif get_origin(annotation) is tuple and not has_comma_syntax:
        keywords["nargs"] = "+"
        if form.positional and not field.is_required():
            keywords["nargs"] = "*"
    if not form.positional:
        keywords["required"] = field.is_required()
        keywords["dest"] = name
    if form.nargs is not None:
        keywords["nargs"] = form.nargs
    if form.const is not None:
        keywords["const"] = form.const
    return keywords
