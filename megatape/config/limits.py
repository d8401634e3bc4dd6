"""Tables of what a setting does not support, and of values that contradict each other.

A component declares its limits beside its definition, in a file that imports no torch, and the registry lists the tables
(LIMITS in megatape/registry.py). A configuration is checked against all of them when it is parsed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from megatape.config.section import Section
from megatape.errors import ConfigError

Checked_contra = TypeVar("Checked_contra", bound=Section, contravariant=True)
Sizes = Iterable[tuple[str, int]]  # names of settings and their values


class Limit(ABC, Generic[Checked_contra]):
    """Something that a section cannot have."""

    @abstractmethod
    def problem(self, section: Checked_contra) -> str | None:
        """Return the error about a section, or None if the section respects the limit."""


@dataclass(frozen=True)
class Incompatibility(Limit[Checked_contra]):
    """A setting that does not work in some case.

    Texts may refer to values of the section, as in "parallel.tp {parallel.tp}".

    Attributes:
        setting: The setting, with its value.
        case: The other setting, with its value, or another property of the run.
        when: Whether a section has both.
        because: Clause with the reason, such as "which divides the weights of a node", or "" if the case says it.
        remedy: What to do, in the imperative; a function if it depends on the registry.
    """

    setting: str
    case: str
    when: Callable[[Checked_contra], bool]
    because: str
    remedy: str | Callable[[], str]

    def problem(self, section: Checked_contra) -> str | None:
        if not self.when(section):
            return None
        values = _Values(section)
        setting = self.setting.format_map(values)
        case = self.case.format_map(values)
        reason = self.because.format_map(values)
        if reason:
            case = f"{case}, {reason}"
        return f"{setting} does not support {case}: {self.advice}"

    @property
    def advice(self) -> str:
        """The remedy as a text."""
        if isinstance(self.remedy, str):
            return self.remedy
        return self.remedy()


@dataclass(frozen=True)
class MultipleOf(Limit[Checked_contra]):
    """Sizes that must be multiples of a number.

    Attributes:
        sizes: Returns the sizes of a section.
        divisor: Returns the number.
        reason: Returns the number as messages name it, and the reason.
        when: Whether a section has this limit.
    """

    sizes: Callable[[Checked_contra], Sizes]
    divisor: Callable[[Checked_contra], int]
    reason: Callable[[Checked_contra], str]
    when: Callable[[Checked_contra], bool]

    def problem(self, section: Checked_contra) -> str | None:
        if not self.when(section):
            return None
        return indivisible(self.sizes(section), self.divisor(section), self.reason(section))


@dataclass(frozen=True)
class Contradiction(Limit[Checked_contra]):
    """Values that contradict each other.

    Attributes:
        when: Whether a section has them.
        message: The values and what to do. It may refer to values of the section, as in "stage is {stage}".
    """

    when: Callable[[Checked_contra], bool]
    message: str

    def problem(self, section: Checked_contra) -> str | None:
        if not self.when(section):
            return None
        return self.message.format_map(_Values(section))


class _Values(dict[str, Any]):
    """Values of a section by name, its properties included, for str.format_map."""

    def __init__(self, section: Section) -> None:
        super().__init__()
        self._section = section

    def __missing__(self, name: str) -> Any:
        return getattr(self._section, name)


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


def check_limits(section: Checked_contra, limits: Iterable[Limit[Checked_contra]]) -> None:
    """Check a section against a table of limits.

    Raises:
        ConfigError: The section does not respect a limit. The error is about the first one.
    """
    for limit in limits:
        problem = limit.problem(section)
        if problem is not None:
            raise ConfigError(problem)
