"""Reads field annotations, for help, completion and documentation."""

import json
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator

from megatape.config.kinds import ByKind, Registered
from megatape.config.section import ResumeRule


def unwrapped(annotation: Any, metadata: Sequence[Any] = ()) -> tuple[Any, list[Any]]:
    """Take `None` and `Annotated` off a field's annotation.

    Args:
        annotation: Annotation.
        metadata: Metadata that pydantic has already moved to the field.

    Returns:
        The plain type, and all metadata.
    """
    collected = list(metadata)
    members = get_args(annotation)
    if type(None) in members:
        (annotation,) = [member for member in members if member is not type(None)]
    if hasattr(annotation, "__metadata__"):
        collected += annotation.__metadata__
        annotation = annotation.__origin__
    return annotation, collected


def choices(annotation: Any, metadata: Sequence[Any] = ()) -> tuple[str, ...]:
    """Return the possible values of a field as users write them, or an empty tuple if there are too many to list.

    Args:
        annotation: Annotation.
        metadata: Metadata that pydantic has already moved to the field.
    """
    kind, all_metadata = unwrapped(annotation, metadata)
    names: list[str] = []
    if get_origin(kind) is Literal:
        for value in get_args(kind):
            if isinstance(value, str):
                names.append(value)
            else:
                names.append(json.dumps(value))
        return tuple(names)
    for entry in all_metadata:
        if isinstance(entry, AfterValidator) and isinstance(entry.func, Registered):
            names += entry.func.entries
    return tuple(names)


def resume_rule_of(metadata: Sequence[Any]) -> ResumeRule | None:
    """Return the resume rule in a field's metadata, or None."""
    for entry in metadata:
        if isinstance(entry, ResumeRule):
            return entry
    return None


def by_kind_of(metadata: Sequence[Any]) -> ByKind | None:
    """Return the validator that selects a field's section by its kind, or None if the section has no kinds."""
    for entry in metadata:
        if isinstance(entry, BeforeValidator) and isinstance(entry.func, ByKind):
            return entry.func
    return None


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the section types in an annotation, such as `Section` or `Section | None`."""
    sections = []
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            sections.append(kind)
    return sections
