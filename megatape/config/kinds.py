"""Keys that take registry names, and sections whose keys depend on such a name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import ValidationInfo, create_model

from megatape.config.section import ResumeRule, Section, is_recorded
from megatape.entries import Entry
from megatape.errors import ConfigError
from megatape.errors.suggestions import choose_one


# Compared by identity, because typing hashes the annotations of `Name | None`.
@dataclass(frozen=True, eq=False)
class Registered:
    """Validator of a key that takes a registry name.

    Attributes:
        entries: Registry entries by name.
        legacy: Entries of earlier versions, accepted but not offered.
    """

    entries: Mapping[str, Entry]
    legacy: Mapping[str, Entry] = field(default_factory=dict)

    def __call__(self, name: str, info: ValidationInfo) -> str:
        is_known = name in self.entries or name in self.legacy
        if not is_known and not is_recorded(info):
            raise ConfigError(choose_one(name, self.entries))
        return name


@dataclass(frozen=True, eq=False)
class ByKind:
    """Validator of a section whose keys depend on its `kind`, a registry name.

    Attributes:
        entries: Registry entries by kind.
        default: Kind of a section that does not name one.
        shared: Section with the keys that every kind has.
        legacy: Entries of earlier versions, accepted but not offered.
    """

    entries: Mapping[str, Any]
    default: str
    shared: type[Section]
    legacy: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, raw: Any, info: ValidationInfo) -> Any:
        options = self.options(raw)
        if options is None and isinstance(raw, dict) and is_recorded(info):
            options = self._recorded_options(raw)
        if options is None:
            return raw
        return options.model_validate(raw, context=info.context)

    def kind(self, raw: dict[str, Any]) -> str:
        """Return the kind of a section with these raw values."""
        return str(raw.get("kind", self.default))

    def options(self, raw: Any) -> type[Section] | None:
        """Return the type of a section with these raw values, or None if their kind does not exist."""
        if not isinstance(raw, dict):
            return None
        kind = self.kind(raw)
        entry = self.entries.get(kind) or self.legacy.get(kind)
        if entry is None:
            return None
        options: type[Section] = entry.load_options()
        return options

    def kinds_with(self, key: str) -> list[str]:
        """Return the kinds whose sections have this key."""
        kinds = []
        for kind, entry in self.entries.items():
            if key in entry.load_options().model_fields:
                kinds.append(kind)
        return kinds

    def _recorded_options(self, raw: dict[str, Any]) -> type[Section]:
        """Create the section of an unregistered kind, with shared keys and unchecked additional ones."""
        unchecked = Annotated[Any, ResumeRule.COMPARED]
        unregistered: dict[str, Any] = {}
        for name in raw:
            if name not in self.shared.model_fields:
                unregistered[name] = (unchecked, ...)
        return create_model(self.shared.__name__, __base__=self.shared, __doc__=self.shared.__doc__, **unregistered)
