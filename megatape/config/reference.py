"""docs/config.md, made from the configuration's own descriptions: python -m megatape.config.reference > docs/config.md"""

import typing
from collections.abc import Iterator

from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo

from megatape.config import Config
from megatape.config.section import Registered, identity_of, sections_in

HEAD = """# Configuration

One strict JSON file describes a run: an unknown key or a value of another type is an error that names
its path, its value and what is allowed. `--set section.key=value` overrides one value. The run's
folder keeps the resolved file, with every default written out. Made by
`python -m megatape.config.reference`.

The column "identity" says whether a run may change a value. A `fixed` value belongs to the model and
one of `samples` decides what it sees: a run keeps both. A `compared` value may change on resume, but
runs that `compare` trains must agree on it. Results do not depend on a `free` one, beyond rounding.
"""
NAMES: dict[type, str] = {str: "text", int: "integer", float: "number", bool: "`true` or `false`"}


def reference() -> str:
    """The page: one table for each section."""
    return "\n".join([HEAD, *_sections(Config, "")])


def _sections(parent: type[BaseModel], prefix: str) -> Iterator[str]:
    """Table of each section of `parent`, followed by those of the sections in it."""
    for name, field in parent.model_fields.items():
        for section in sections_in(field.annotation):
            lines = [
                f"## {prefix}{name}",
                "",
                str(section.__doc__),
                "",
                "| key | type | default | identity | meaning |",
                "|---|---|---|---|---|",
            ]
            lines += [_row(key, entry) for key, entry in section.model_fields.items()]
            yield "\n".join(lines) + "\n"
            yield from _sections(section, f"{prefix}{name}.")


def _row(key: str, field: FieldInfo) -> str:
    validators = [entry.func for entry in field.metadata if isinstance(entry, AfterValidator)]
    choices = [name for validator in validators if isinstance(validator, Registered) for name in validator.entries]
    if typing.get_origin(field.annotation) is typing.Literal:
        choices = list(typing.get_args(field.annotation))
    if choices:
        kind = " or ".join(f"`{value}`" for value in choices)
    elif sections_in(field.annotation):
        kind = "section"
    else:
        (plain,) = {field.annotation, *typing.get_args(field.annotation)} & NAMES.keys()  # T or T | None
        kind = NAMES[plain]
    default = (
        "required"
        if field.is_required()
        else "none"
        if kind == "section"
        else "see right"
        if field.default is None
        else f"`{str(field.default).lower() or 'empty'}`"
    )
    identity = identity_of(field.metadata)
    return f"| `{key}` | {kind} | {default} | {identity.value if identity else ''} | {field.description or ''} |"


if __name__ == "__main__":
    print(reference(), end="")
