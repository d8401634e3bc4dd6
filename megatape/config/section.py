"""Base of all sections: strict parsing, the resume rule of every field, and keys that take registered names."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import Enum
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, create_model

from megatape.errors import ConfigError, check_word, choose_one
from megatape.registry import Entry
from megatape.utils.options import DocumentedModel


class ResumeRule(Enum):
    """What changing a field means for a run. Every field's annotation carries one (Fixed[int], Free[str])."""

    FIXED = "fixed"  # defines the model: must not change on resume
    SAMPLES = "samples"  # defines the samples: must not change on resume
    COMPARED = "compared"  # may change on resume; compared runs must agree on it
    CONFIRMED = "confirmed"  # the same, if the user confirms it: numbers or optimizer state mean something else then
    FREE = "free"  # does not affect results, beyond rounding
    LOCAL = "local"  # free, and each host may have its own

    @property
    def is_compared(self) -> bool:
        """Whether compared runs must agree on it, though it may change on resume."""
        return self in (ResumeRule.COMPARED, ResumeRule.CONFIRMED)


Value = TypeVar("Value")
Fixed = Annotated[Value, ResumeRule.FIXED]
FixedSamples = Annotated[Value, ResumeRule.SAMPLES]
Compared = Annotated[Value, ResumeRule.COMPARED]
Confirmed = Annotated[Value, ResumeRule.CONFIRMED]
Free = Annotated[Value, ResumeRule.FREE]
Local = Annotated[Value, ResumeRule.LOCAL]

JsonList = Annotated[tuple[Value, ...], Field(strict=False)]  # JSON has lists, which strict tuples are not


def _check_path(text: str) -> str:
    if text.startswith("~"):
        raise ConfigError(f"{text!r} begins with ~, which is a home folder to shells alone: write the whole path")
    return check_word(text)


PathText = Annotated[str, AfterValidator(_check_path)]  # a path or URL, which scripts and launchers are given


class Section(DocumentedModel):
    """Base of all sections: immutable, strictly typed, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    def __hash__(self) -> int:
        return hash(json.dumps(self.model_dump(), sort_keys=True))  # pydantic's own fails for dictionaries

    def _default(self, name: str, value: Any) -> None:
        """Fill in a field whose default depends on other fields. Sections are frozen to everyone else."""
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)


def check_growing(name: str, stages: Sequence[Section]) -> None:
    """Raise ConfigError unless every value grows from each stage of a warm-up to the next. name: of the field."""
    for earlier, later in pairwise(stages):
        if any(getattr(earlier, key) >= getattr(later, key) for key in type(later).model_fields):
            raise ConfigError(f"{name} has {later} after {earlier}: both must grow")


# Validation context for reading a run's recorded configuration without the user's own modules. The run checked it when it
# began, so unregistered names belong to these modules, and checks against a registry are skipped.
RECORDED = {"recorded": True}


def is_recorded(info: ValidationInfo) -> bool:
    """Whether a validator reads a recorded configuration without the user's own modules."""
    return info.context == RECORDED


@dataclass(frozen=True, eq=False)  # typing hashes the annotations of `Name | None`
class Registered:
    """Validator of a key that takes a name of a registry (megatape/registry.py).

    Attributes:
        entries: Entries of the registry, by name.
        legacy: Entries of earlier versions, which are accepted but not offered.
    """

    entries: Mapping[str, Entry]
    legacy: Mapping[str, Entry] = dataclass_field(default_factory=dict)

    def __call__(self, name: str, info: ValidationInfo) -> str:
        is_known = name in self.entries or name in self.legacy
        if not is_known and not is_recorded(info):
            raise ConfigError(choose_one(name, self.entries))
        return name


@dataclass(frozen=True, eq=False)
class ByKind:
    """Validator of a section whose keys depend on its `kind`, the name of an entry with options of its own.

    Attributes:
        entries: Entries of the registry, by kind.
        default: Kind of a section that does not name it.
        shared: Section with the keys that every kind has.
        legacy: Entries of earlier versions, which are accepted but not offered.
    """

    entries: Mapping[str, Any]
    default: str
    shared: type[Section]
    legacy: Mapping[str, Any] = dataclass_field(default_factory=dict)

    def options(self, raw: Any) -> Any:
        """Return the type of the section for raw values, or None if their kind does not exist."""
        if not isinstance(raw, dict):
            return None
        kind = str(raw.get("kind", self.default))
        entry = self.entries.get(kind) or self.legacy.get(kind)
        if entry is None:
            return None
        return entry.load_options()

    def __call__(self, raw: Any, info: ValidationInfo) -> Any:
        options = self.options(raw)
        if options is None and isinstance(raw, dict) and is_recorded(info):
            options = self._recorded_options(raw)
        return raw if options is None else options.model_validate(raw, context=info.context)

    def _recorded_options(self, raw: dict[str, Any]) -> type[Section]:
        """Make the section of an unregistered kind: shared keys, and keys of its own with unchecked values."""
        unchecked = Annotated[Any, ResumeRule.COMPARED]
        own: dict[str, Any] = {name: (unchecked, ...) for name in raw if name not in self.shared.model_fields}
        return create_model(self.shared.__name__, __base__=self.shared, __doc__=self.shared.__doc__, **own)


@dataclass(frozen=True)
class Difference:
    """A field on which two configurations differ, such as model.num_layers."""

    path: str
    rule: ResumeRule
    theirs: Any
    ours: Any


def fields(section: Section, prefix: str = "") -> Iterator[tuple[str, ResumeRule, Any]]:
    """Path, resume rule and value of every field of a section, in the order of declaration.

    A subsection whose field carries a resume rule is one value.
    """
    for name, field in type(section).model_fields.items():
        rule = resume_rule_of(field.metadata)
        value = getattr(section, name)
        if rule is not None:
            yield prefix + name, rule, value
        elif isinstance(value, Section):
            yield from fields(value, f"{prefix}{name}.")
        else:  # sections by name
            for key, part in value.items():
                yield from fields(part, f"{prefix}{name}.{key}.")


def differences(theirs: Section, ours: Section) -> Iterator[Difference]:
    """Every field on which two sections of one type differ. One that only one of them has is None in the other."""
    before, now = ({path: (rule, value) for path, rule, value in fields(section)} for section in (theirs, ours))
    for path, (rule, _) in (before | now).items():
        values = [found[path][1] if path in found else None for found in (before, now)]
        if values[0] != values[1]:
            yield Difference(path, rule, *values)


def shared_values(section: Section) -> dict[str, Any]:
    """The values of the fields on which all ranks of a run must agree, as JSON, by path."""
    return {path: plain(value) for path, rule, value in fields(section) if rule is not ResumeRule.LOCAL}


def plain(value: Any) -> Any:
    """The value of a field as JSON has it."""
    if isinstance(value, tuple):
        return [plain(part) for part in value]
    return value.model_dump() if isinstance(value, Section) else value


def unwrapped(annotation: Any, metadata: Sequence[Any] = ()) -> tuple[Any, list[Any]]:
    """A type without `None` and `Annotated`, and what these and a field's `metadata` say of it."""
    found = list(metadata)
    if type(None) in get_args(annotation):
        (annotation,) = (member for member in get_args(annotation) if member is not type(None))
    if hasattr(annotation, "__metadata__"):
        found += annotation.__metadata__
        annotation = annotation.__origin__
    return annotation, found


def choices(annotation: Any, metadata: Sequence[Any] = ()) -> tuple[Any, ...]:
    """The values that a type has, as `unwrapped` takes it; empty if there are too many to list."""
    kind, found = unwrapped(annotation, metadata)
    if get_origin(kind) is Literal:
        return get_args(kind)
    registries = [each.func for each in found if isinstance(each, AfterValidator) and isinstance(each.func, Registered)]
    return tuple(name for registry in registries for name in registry.entries)


def resume_rule_of(metadata: list[Any]) -> ResumeRule | None:
    """Return the resume rule among the annotations of a field, or None if there is none."""
    return next((entry for entry in metadata if isinstance(entry, ResumeRule)), None)


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """Section types in a field's annotation: the annotation itself, or a member of its union with None."""
    return [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type) and issubclass(kind, BaseModel)]
