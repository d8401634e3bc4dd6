"""Fields by path, and differences between two configurations."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from megatape.config.fields.annotations import resume_rule_of
from megatape.config.section import ResumeRule, Section


class FieldValue(NamedTuple):
    """A field of a configuration.

    Attributes:
        path: Path, such as model.num_layers.
        rule: Resume rule.
        value: Value.
    """

    path: str
    rule: ResumeRule
    value: Any


@dataclass(frozen=True)
class Difference:
    """A field on which two configurations differ.

    Attributes:
        path: Path, such as model.num_layers.
        rule: Resume rule.
        theirs: Value in the first configuration, or None if it lacks the field.
        ours: Value in the second configuration, or None if it lacks the field.
    """

    path: str
    rule: ResumeRule
    theirs: Any
    ours: Any


def fields(section: Section, prefix: str = "") -> Iterator[FieldValue]:
    """Yield every field of a section, in the order of declaration. A subsection with a resume rule is one value.

    Args:
        section: Section to walk through.
        prefix: Path of the section, ending with a dot.
    """
    for name, field in type(section).model_fields.items():
        rule = resume_rule_of(field.metadata)
        value = getattr(section, name)
        if rule is not None:
            yield FieldValue(prefix + name, rule, value)
        elif isinstance(value, Section):
            yield from fields(value, f"{prefix}{name}.")
        else:
            for key, subsection in value.items():
                yield from fields(subsection, f"{prefix}{name}.{key}.")


def differences(theirs: Section, ours: Section) -> Iterator[Difference]:
    """Yield every difference between two sections of the same type."""
    their_fields = {field.path: field for field in fields(theirs)}
    our_fields = {field.path: field for field in fields(ours)}
    for path, field in (their_fields | our_fields).items():
        their_value = None
        if path in their_fields:
            their_value = their_fields[path].value
        our_value = None
        if path in our_fields:
            our_value = our_fields[path].value
        if their_value != our_value:
            yield Difference(path, field.rule, their_value, our_value)


def shared_values(section: Section) -> dict[str, Any]:
    """Return the values on which all ranks must agree, by path, as JSON values."""
    return {field.path: plain(field.value) for field in fields(section) if field.rule is not ResumeRule.LOCAL}


def plain(value: Any) -> Any:
    """Return a field's value as a JSON value."""
    if isinstance(value, tuple):
        return [plain(part) for part in value]
    if isinstance(value, Section):
        return value.model_dump()
    return value
