"""Limits: combinations of settings that a component does not support.

A component declares its limits beside its definition, in a file that imports no torch, and the registry lists the files:
LIMITS in megatape/registry.py for the whole configuration, MODEL_LIMITS for the model section. A configuration is checked
against all of them when it is parsed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pkgutil import resolve_name
from typing import Any, Generic, TypeAlias, TypeVar

from megatape.config.section import Section
from megatape.errors import ConfigError

Checked = TypeVar("Checked", bound=Section)
Checked_contra = TypeVar("Checked_contra", bound=Section, contravariant=True)

# Function named after a violation: it returns the error about a section, or None if the section respects the limit.
Limit: TypeAlias = Callable[[Checked], str | None]
Sizes: TypeAlias = Iterable[tuple[str, int]]  # names of settings and their values


@dataclass(frozen=True)
class ValueOf:
    """A setting that an error shows with its value, such as "parallel.tp 2".

    Attributes:
        path: Path of the attribute, starting at the checked section.
        name: Name in the error, by default the path.
    """

    path: str
    name: str | None = None

    def __str__(self) -> str:
        return self.name or self.path

    def in_error(self, section: Section) -> str:
        """Return the name and the value that a section has."""
        value = attrgetter(self.path)(section)
        return f"{self} {value}"


@dataclass(frozen=True)
class Incompatibility(Generic[Checked_contra]):
    """A setting that does not work in some case. docs/config.md has a table of all of them.

    A `ValueOf` in place of a text lets the error show the value, too.

    Attributes:
        setting: Name of the setting.
        case: Name of the other setting, or another property of the run.
        when: Whether a section has both.
        because: Clause with the reason, such as "which shards the weights of a node", or None if the case says it.
        remedy: Advice in the imperative; a function if it depends on the registry.
    """

    setting: str | ValueOf
    case: str | ValueOf
    when: Callable[[Checked_contra], bool]
    because: str | ValueOf | None
    remedy: str | Callable[[], str]

    def __call__(self, section: Checked_contra) -> str | None:
        """Return the error about a section, or None if it does not have both."""
        if not self.when(section):
            return None
        return self.error(section)

    def error(self, section: Section) -> str:
        """Return the error about a section that has both."""
        setting = _in_error(self.setting, section)
        case = _in_error(self.case, section)
        if self.because is not None:
            case = f"{case}, {_in_error(self.because, section)}"
        return f"{setting} does not support {case}: {self.advice}"

    @property
    def advice(self) -> str:
        """The remedy as a text."""
        if isinstance(self.remedy, str):
            return self.remedy
        return self.remedy()


def _in_error(text: str | ValueOf, section: Section) -> str:
    if isinstance(text, ValueOf):
        return text.in_error(section)
    return text


def indivisible(sizes: Sizes, divisor: int, reason: str) -> str | None:
    """Return the error about the first size that is not a multiple of the divisor, or None if all are.

    Args:
        sizes: Names and sizes.
        divisor: The divisor.
        reason: The divisor as messages name it, and why the sizes must be multiples of it.
    """
    for name, size in sizes:
        if size % divisor:
            return f"{name} {size} is not a multiple of {reason}"
    return None


def check_limits(section: Checked, limits: Iterable[Limit[Checked]]) -> None:
    """Raise a ConfigError about the first limit that a section does not respect."""
    for limit in limits:
        reason = limit(section)
        if reason is not None:
            raise ConfigError(reason)


def load_limits(table: Mapping[str, str]) -> tuple[Limit[Any], ...]:
    """Return the limits that a table of the registry lists, in the order of checking.

    Args:
        table: Location of each component's limits, "package.module:name", by name of the component.
    """
    return _load(tuple(table.values()))


@cache
def _load(targets: tuple[str, ...]) -> tuple[Limit[Any], ...]:
    """Import limits. Cached, because a search for settings parses thousands of configurations."""
    limits: list[Limit[Any]] = []
    for target in targets:
        limits += resolve_name(target)
    return tuple(limits)
