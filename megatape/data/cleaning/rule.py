"""Cleaning rules, and how the command line names them.

A new rule is a file with a subclass of TextRule, or of DocumentRule if it needs more than the text, and a line in RULES
(megatape/registry.py). Its fields are its options.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from megatape.data.shards.hashes import content_hash, file_sha256
from megatape.data.sources.document import Document
from megatape.errors import MissingPath, UserError, choose_one, path_errors
from megatape.registry import RULES
from megatape.utils.files import describe_fault


class DocumentDropped(Exception):
    """A rule drops a document. The message is the reason, one of few."""


@dataclass(frozen=True)
class Rule:
    """A rule with its options.

    Attributes:
        packages: Packages that do the work, so that their versions decide the result.
        is_last: Whether it takes the texts that all others leave, in any order.
    """

    packages: ClassVar[tuple[str, ...]] = ()
    is_last: ClassVar[bool] = False

    @property
    def needs(self) -> tuple[str, ...]:
        """Fields of records that it reads besides the text, as Source has them."""
        return ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Files and folders that it reads, whose content decides the result."""
        return ()

    def describe(self) -> dict[str, Any]:
        """Everything that decides the rule's result, as JSON.

        Raises ModuleNotFoundError if a package is missing, MissingPath if a file is.
        """
        options = {name: list(value) if isinstance(value, tuple) else value for name, value in self.__getstate__().items()}
        described: dict[str, Any] = {"options": options}
        if self.packages:
            described["packages"] = {name: version(name) for name in self.packages}
        if self.paths:
            hashes = {name: [file_sha256(file) for file in files_of(name)] for name in self.paths}
            described["sha256"] = {name: found[0] if len(found) == 1 else content_hash(found) for name, found in hashes.items()}
        return described

    def check(self) -> None:
        """Raise UserError if its files have the wrong content. Called before the command reads anything."""

    def __getstate__(self) -> dict[str, Any]:
        """The options alone: each process loads its own models."""
        return {option.name: getattr(self, option.name) for option in fields(self)}


class DocumentRule(Rule, ABC):
    """A rule that decides about each document on its own."""

    @abstractmethod
    def clean(self, document: Document) -> str:
        """The text that is left, a function of the document and the options alone. Raises DocumentDropped."""


class TextRule(DocumentRule):
    """A rule that looks at the text alone."""

    def clean(self, document: Document) -> str:
        return self.apply(document.text)

    @abstractmethod
    def apply(self, text: str) -> str:
        """The text that is left, a function of `text` and the options alone. Raises DocumentDropped."""


class ScoreRule(Rule, ABC):
    """A rule that drops documents with a score below `minimum`. The scores of the others are kept.

    Attributes:
        minimum: The least score of a document that stays.
    """

    minimum: float

    @abstractmethod
    def score(self, text: str) -> float:
        """The score of a text, a function of it and the options alone."""


class UnitRule(Rule, ABC):
    """A rule that compares the documents of a unit with each other."""

    @abstractmethod
    def begin(self) -> DocumentRule:
        """The rule for the documents of one unit, in order."""


def files_of(name: str) -> list[Path]:
    """A file, or all files of a folder but hidden ones, in a fixed order. Raises MissingPath if there is none."""
    path = Path(name)
    files = sorted(file for file in path.rglob("[!.]*") if file.is_file()) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise MissingPath(f"{name}: no such file, nor a folder with files: check the path")
    return files


@path_errors()
def parse_rules(texts: Iterable[str]) -> dict[str, Rule]:
    """Rules by their names, of several `NAME:option=value,option=value`.

    After a comma, text without a name continues the value before it.

    Raises UserError for unknown names, options and values, ModuleNotFoundError or FileNotFoundError for what a rule needs.
    """
    rules: dict[str, Rule] = {}
    for text in texts:
        name, _, options = text.partition(":")
        if name not in RULES:
            raise UserError(f"rule {name!r} is unknown: {choose_one(name, RULES)}")
        if name in rules:
            raise UserError(f"rule {name} is given twice: give it once, with all of its options")
        rules[name] = _parse(name, options)
    return dict(sorted(rules.items(), key=lambda item: item[1].is_last))


def _parse(name: str, text: str) -> Rule:
    kind: type[Rule] = RULES[name].load()
    types = get_type_hints(kind)
    options = [option.name for option in fields(kind)]
    known = ", ".join(options) or "none"
    values: dict[str, list[str]] = {}
    last = ""
    for part in text.split(",") if text else []:
        option, equals, value = part.partition("=")
        if equals:
            last = option
            if option in values:
                raise UserError(f"rule {name}: {option} is given twice: give it once")
        elif not values:
            raise UserError(f"rule {name}: {part!r} is no option=value; its options: {known}")
        values.setdefault(last, []).append(value if equals else part)
    given: dict[str, Any] = {}
    for option, parts in values.items():
        if option not in options:
            raise UserError(f"rule {name} has no option {option!r}; its options: {known}")
        given[option] = parts if get_origin(types[option]) is tuple else ",".join(parts)
    try:
        rule: Rule = TypeAdapter(kind).validate_python(given)
    except ValidationError as errors:
        error = errors.errors()[0]
        option = str(error["loc"][0]) if error["loc"] else ""
        if error["type"] == "missing":
            raise UserError(f"rule {name} needs {option}: write {name}:{option}=...") from None
        raise UserError(f"rule {name}: {describe_fault(error, option)}") from None
    try:
        rule.describe()  # a missing package or file ends the command before it reads anything
        rule.check()
    except UserError as error:
        raise type(error)(f"rule {name}: {error}") from None
    return rule
