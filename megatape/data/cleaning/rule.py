"""Cleaning rules, and their options on the command line.

To add a rule, write a subclass of TextRule, or of DocumentRule if it needs more than the text, and a line of RULES
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
from megatape.errors import MissingPath, UserError, flag, marked_message, path_errors
from megatape.errors.suggestions import choose_one
from megatape.registry import RULES
from megatape.utils.values.validation import describe_mismatch


class DocumentDropped(Exception):
    """Raised by a rule to drop a document. The message is the reason, one of few."""


@dataclass(frozen=True)
class Rule:
    """A rule with its options.

    Attributes:
        packages: Packages whose versions affect the result.
        is_last: Whether the rule applies after all others, wherever the user lists it.
    """

    packages: ClassVar[tuple[str, ...]] = ()
    is_last: ClassVar[bool] = False

    @property
    def needs(self) -> tuple[str, ...]:
        """Record fields that the rule reads besides the text, see `Source.fields`."""
        return ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Files and folders whose content affects the result."""
        return ()

    def describe(self) -> dict[str, Any]:
        """Return everything that affects the rule's result, as JSON.

        Raises:
            ModuleNotFoundError: A package is missing.
            MissingPath: A file is missing.
        """
        options: dict[str, Any] = {}
        for name, value in self.__getstate__().items():
            if isinstance(value, tuple):
                value = list(value)
            options[name] = value
        described: dict[str, Any] = {"options": options}
        if self.packages:
            described["packages"] = {name: version(name) for name in self.packages}
        if self.paths:
            described["sha256"] = {name: _hash_path(name) for name in self.paths}
        return described

    def check(self) -> None:
        """Check the content of the rule's files, before the command reads any document. Raises UserError."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the options alone, because each process loads its own models."""
        return {option.name: getattr(self, option.name) for option in fields(self)}


class DocumentRule(Rule, ABC):
    """A rule about single documents."""

    @abstractmethod
    def clean(self, document: Document) -> str:
        """Return the cleaned text, depending on the document and the options alone. Raises DocumentDropped."""


class TextRule(DocumentRule):
    """A rule that uses only the text."""

    def clean(self, document: Document) -> str:
        return self.apply(document.text)

    @abstractmethod
    def apply(self, text: str) -> str:
        """Return the cleaned text, depending on `text` and the options alone. Raises DocumentDropped."""


class ScoreRule(Rule, ABC):
    """A rule that drops documents with a score below `minimum`. The scores of kept documents are stored.

    Attributes:
        minimum: Minimum score of a kept document.
    """

    minimum: float

    @abstractmethod
    def score(self, text: str) -> float:
        """Return the score of a text, depending on `text` and the options alone."""


class UnitRule(Rule, ABC):
    """A rule comparing the documents of a unit with each other."""

    @abstractmethod
    def begin(self) -> DocumentRule:
        """Return the rule for the documents of one unit, in order."""


def files_of(name: str) -> list[Path]:
    """Return a file, or all files in a folder except hidden ones, in a fixed order. Raises MissingPath if there is none."""
    path = Path(name)
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("[!.]*") if file.is_file())
    if not files or not files[0].is_file():
        raise MissingPath(f"{name}: no such file, nor a folder with files: check the path")
    return files


@path_errors()
def parse_rules(texts: Iterable[str]) -> dict[str, Rule]:
    """Parse rules written as `NAME:option=value,option=value`. After a comma, text without a name continues the last value.

    Returns:
        Rules by name.

    Raises:
        UserError: A name, option or value is unknown.
        ModuleNotFoundError: A package of a rule is missing.
        FileNotFoundError: A file of a rule is missing.
    """
    rules: dict[str, Rule] = {}
    for text in texts:
        name, _, options = text.partition(":")
        if name not in RULES:
            raise UserError(f"{flag('rule')} {name!r} is unknown: {choose_one(name, RULES)}")
        if name in rules:
            raise UserError(f"{flag('rule')} {name} is given twice: give it once, with all of its options")
        rules[name] = _parse(name, options)
    return dict(sorted(rules.items(), key=lambda item: item[1].is_last))


def _hash_path(name: str) -> str:
    """Return the sha256 of a file, or a combined hash of all files in a folder."""
    hashes = [file_sha256(file) for file in files_of(name)]
    if len(hashes) == 1:
        return hashes[0]
    return content_hash(hashes)


def _parse(name: str, text: str) -> Rule:
    kind: type[Rule] = RULES[name].load()
    types = get_type_hints(kind)
    options = [option.name for option in fields(kind)]
    option_names = ", ".join(options) or "none"
    values: dict[str, Any] = {}
    for option, parts in _split_options(name, text, option_names).items():
        if option not in options:
            raise UserError(f"{flag('rule')} {name} has no option {option!r}; its options: {option_names}")
        if get_origin(types[option]) is tuple:
            values[option] = parts
        else:
            values[option] = ",".join(parts)
    try:
        rule: Rule = TypeAdapter(kind).validate_python(values)
    except ValidationError as errors:
        raise _invalid_option(name, errors) from None
    try:
        # Raises an error if a package or file is missing, before the command reads any document.
        rule.describe()
        rule.check()
    except UserError as error:
        raise type(error)(f"{flag('rule')} {name}: {marked_message(error)}") from None
    return rule


def _invalid_option(name: str, errors: ValidationError) -> UserError:
    """Return the error about the first invalid option of a rule."""
    details = errors.errors()[0]
    option = ""
    if details["loc"]:
        option = str(details["loc"][0])
    if details["type"] == "missing":
        return UserError(f"{flag('rule')} {name} needs {option}: write {name}:{option}=...")
    return UserError(f"{flag('rule')} {name}: {describe_mismatch(details, option)}")


def _split_options(name: str, text: str, option_names: str) -> dict[str, list[str]]:
    """Split options into their names and the comma-separated parts of their values.

    The names of the rule and of its options are for errors.
    """
    values: dict[str, list[str]] = {}
    if not text:
        return values
    option = ""
    for part in text.split(","):
        before, equals, after = part.partition("=")
        if equals:
            option = before
            if option in values:
                raise UserError(f"{flag('rule')} {name}: {option} is given twice: give it once")
            values[option] = [after]
        elif not values:
            raise UserError(f"{flag('rule')} {name}: {part!r} is not option=value; its options: {option_names}")
        else:
            values[option].append(part)
    return values
