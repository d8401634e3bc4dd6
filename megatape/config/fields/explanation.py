"""Explains pydantic's errors about a configuration, in one line each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_origin

from pydantic import BaseModel, ValidationError

from megatape.config.fields.annotations import by_kind_of, sections_in
from megatape.config.kinds import ByKind
from megatape.errors.suggestions import did_you_mean, most_similar
from megatape.utils.values.validation import describe_mismatch


@dataclass(frozen=True)
class _LocatedSection:
    """A section at some place in a configuration.

    Attributes:
        section: Type of the section.
        kind: Kind of the section, "" if it has no kinds.
        by_kind: Validator selecting the type by kind, or None if the section has no kinds.
    """

    section: type[BaseModel]
    kind: str = ""
    by_kind: ByKind | None = None

    def kinds_with(self, key: str) -> list[str]:
        """Return the other kinds with this key."""
        if self.by_kind is None:
            return []
        return self.by_kind.kinds_with(key)


def explain(error: ValidationError, section: type[BaseModel], raw: Any) -> Iterator[str]:
    """Yield a line about each error: path, value, and what is allowed.

    A required field that is only misspelled is missing as well as unknown. Its line about the unknown key suggests the field,
    so the line about the missing field is left out.

    Args:
        error: Errors of the section.
        section: Type of the validated section.
        raw: Values of the section.
    """
    misspelled = set()
    for details in error.errors():
        if details["type"] == "extra_forbidden":
            *location, key = details["loc"]
            fields = _section_at(location, section, raw).section.model_fields
            misspelled.add((*location, most_similar(str(key), fields)))
    for details in error.errors():
        if details["type"] != "missing" or details["loc"] not in misspelled:
            yield _explain(dict(details), section, raw)


def _explain(details: dict[str, Any], section: type[BaseModel], raw: Any) -> str:
    """Return a line about one error.

    Args:
        details: Entry of `ValidationError.errors()`.
        section: Type of the validated section.
        raw: Values of the section.
    """
    path = ".".join(str(part) for part in details["loc"])
    if details["type"] != "extra_forbidden":
        return describe_mismatch(details, path)
    *location, key = details["loc"]
    located = _section_at(location, section, raw)
    kinds = located.kinds_with(str(key))
    if kinds:
        owners = " and ".join(kinds)
        setting = f"{path.rpartition('.')[0]}.kind"
        return f"{path}: not a key of kind {located.kind}, but of {owners}: remove it, or set {setting} to {kinds[0]}"
    allowed = list(located.section.model_fields)
    hint = did_you_mean(str(key), allowed)
    return f"{path}: unknown key; {hint}allowed: {', '.join(allowed)}"


def _section_at(location: Sequence[Any], section: type[BaseModel], raw: Any) -> _LocatedSection:
    """Find the section at a location below a section with these values."""
    parts = iter(location)
    located = _LocatedSection(section)
    for part in parts:
        field = located.section.model_fields[part]
        raw = raw[part]
        if get_origin(field.annotation) in (dict, tuple):
            key = next(parts)  # name or number of one of several sections
            raw = raw[key]
        (declared,) = sections_in(field.annotation)
        located = _with_kind(declared, field.metadata, raw)
    return located


def _with_kind(declared: type[BaseModel], metadata: Sequence[Any], raw: Mapping[str, Any]) -> _LocatedSection:
    """Return the section that a field holds. Its type may depend on the kind in `raw`."""
    by_kind = by_kind_of(metadata)
    if by_kind is None:
        return _LocatedSection(declared)
    options = by_kind.options(raw)
    if options is None:
        return _LocatedSection(declared)
    return _LocatedSection(options, by_kind.kind(dict(raw)), by_kind)
