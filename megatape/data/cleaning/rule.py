"""What a cleaning rule is.

A new rule is a file with a subclass of TextRule and a line in RULES (megatape/registry.py). Its fields are its options.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar


class Dropped(Exception):
    """Why a document is left out. The message is the same for all documents of its kind, of which there are few."""


@dataclass(frozen=True)
class Rule:
    """A rule with its options.

    packages: that do the work, and whose versions therefore decide the result.
    """

    packages: ClassVar[tuple[str, ...]] = ()

    def describe(self) -> dict[str, Any]:
        """What decides the rule's result, as JSON has it. Raises ModuleNotFoundError if a package is missing."""
        options = {option.name: getattr(self, option.name) for option in fields(self)}
        described: dict[str, Any] = {"options": {name: _plain(value) for name, value in options.items()}}
        if self.packages:
            described["packages"] = {name: _version(name) for name in self.packages}
        return described

    def __getstate__(self) -> dict[str, Any]:
        """The options alone: each process loads its own models."""
        return {option.name: getattr(self, option.name) for option in fields(self)}


class TextRule(Rule, ABC):
    """A rule that judges each text by itself. edits: whether it may change one."""

    edits: ClassVar[bool] = False

    @abstractmethod
    def apply(self, text: str) -> str:
        """What is left of a text, which is a function of the text and the options. Raises Dropped if nothing is."""


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package) from None
