"""What all sections share: strict parsing, each field's role in the identity of a run, and keys that take registered names."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict

from megatape.registry import Entry


class Identity(Enum):
    """What changing a field means for a run. Every field's annotation carries one (Fixed[int], Free[str])."""

    FIXED = "fixed"  # defines the model: must not change on resume
    SAMPLES = "samples"  # defines the samples: must not change on resume
    COMPARED = "compared"  # may change on resume; compared runs must agree on it
    FREE = "free"  # does not affect results, beyond rounding
    LOCAL = "local"  # free, and each host may have its own


Value = TypeVar("Value")
Fixed = Annotated[Value, Identity.FIXED]
FixedSamples = Annotated[Value, Identity.SAMPLES]
Compared = Annotated[Value, Identity.COMPARED]
Free = Annotated[Value, Identity.FREE]
Local = Annotated[Value, Identity.LOCAL]


class Section(BaseModel):
    """Base of all sections: immutable, strictly typed, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    def _default(self, name: str, value: Any) -> None:
        """Fill in a field whose default depends on other fields. Sections are frozen to everyone else."""
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)


@dataclass(frozen=True, eq=False)  # typing hashes the annotations of `Name | None`
class Registered:
    """Validator of a key that takes a name of a registry (megatape/registry.py)."""

    entries: Mapping[str, Entry]

    def __call__(self, name: str) -> str:
        if name not in self.entries:
            raise ValueError(f"choose one of {', '.join(self.entries)}")
        return name


@dataclass(frozen=True)
class Difference:
    """A field on which two configurations differ, such as model.num_layers."""

    path: str
    identity: Identity
    theirs: Any
    ours: Any


def fields(section: Section, prefix: str = "") -> Iterator[tuple[str, Identity, Any]]:
    """Path, identity and value of every field of a section, in the order of declaration.

    A subsection whose field carries an identity is one value."""
    for name, field in type(section).model_fields.items():
        identity = identity_of(field.metadata)
        if identity is not None:
            yield prefix + name, identity, getattr(section, name)
        else:
            yield from fields(getattr(section, name), f"{prefix}{name}.")


def differences(theirs: Section, ours: Section) -> Iterator[Difference]:
    """Every field on which two sections of one type differ."""
    for (path, identity, before), (_, _, now) in zip(fields(theirs), fields(ours), strict=True):
        if before != now:
            yield Difference(path, identity, before, now)


def shared_values(section: Section) -> dict[str, Any]:
    """The values of the fields on which all ranks of a run must agree, as JSON, by path."""
    plain = (
        (path, value.model_dump() if isinstance(value, Section) else value, identity)
        for path, identity, value in fields(section)
    )
    return {path: value for path, value, identity in plain if identity is not Identity.LOCAL}


def identity_of(metadata: list[Any]) -> Identity | None:
    """The identity among a field's annotations."""
    return next((entry for entry in metadata if isinstance(entry, Identity)), None)


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """Section types in a field's annotation: the annotation itself, or a member of its union with None."""
    return [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type) and issubclass(kind, BaseModel)]
