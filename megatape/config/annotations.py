"""Information in the annotations of fields, for help, completion and documentation."""

from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel

from megatape.config.kinds import Registered
from megatape.config.section import ResumeRule


def unwrapped(annotation: Any, metadata: Sequence[Any] = ()) -> tuple[Any, list[Any]]:
    """Take `None` and `Annotated` off a type.

    Args:
        annotation: Annotation of a field.
        metadata: Metadata of the field.

    Returns:
        The type, and the metadata of the field and of the annotation.
    """
    found = list(metadata)
    members = get_args(annotation)
    if type(None) in members:
        (annotation,) = [member for member in members if member is not type(None)]
    if hasattr(annotation, "__metadata__"):
        found += annotation.__metadata__
        annotation = annotation.__origin__
    return annotation, found


def choices(annotation: Any, metadata: Sequence[Any] = ()) -> tuple[Any, ...]:
    """Return the values that a type has, or an empty tuple if there are too many to list.

    Args:
        annotation: Annotation of a field.
        metadata: Metadata of the field.
    """
    kind, found = unwrapped(annotation, metadata)
    if get_origin(kind) is Literal:
        return get_args(kind)
    names: list[str] = []
    for each in found:
        if isinstance(each, AfterValidator) and isinstance(each.func, Registered):
            names += each.func.entries
    return tuple(names)


def resume_rule_of(metadata: Sequence[Any]) -> ResumeRule | None:
    """Return the resume rule among the annotations of a field, or None if there is none."""
    for entry in metadata:
        if isinstance(entry, ResumeRule):
            return entry
    return None


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the section types in an annotation: the annotation itself, or a member of its union with None."""
    sections = []
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            sections.append(kind)
    return sections
