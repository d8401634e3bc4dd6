"""The rules of a preparation, as the command line names them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from megatape.data.cleaning.near_duplicates import NearDuplicates
from megatape.data.cleaning.rule import Dropped, Rule, TextRule
from megatape.errors import UserError, path_errors
from megatape.registry import RULES


@dataclass(frozen=True)
class Cleaning:
    """Rules by their names. Those that judge a text by itself are applied in this order; near duplicates come last."""

    rules: Mapping[str, Rule] = field(default_factory=dict)

    @property
    def near_duplicates(self) -> NearDuplicates | None:
        """The rule about documents that resemble an earlier one, if it was chosen."""
        return next((rule for rule in self.rules.values() if isinstance(rule, NearDuplicates)), None)

    def steps(self, text: str) -> Iterator[tuple[str, str]]:
        """What each of the rules leaves of a text, by name. Raises Dropped, with the rule's name, if it is left out."""
        for name, rule in self.rules.items():
            if isinstance(rule, TextRule):
                try:
                    text = rule.apply(text)
                except Dropped as reason:
                    raise Dropped(f"{name}: {reason}") from None
                if not text or text.isspace():
                    raise Dropped(f"{name}: nothing left")
                yield name, text

    def apply(self, text: str) -> str:
        """What all of them leave. Raises Dropped as `steps` does."""
        for _, left in self.steps(text):
            text = left
        return text

    def edit(self, text: str) -> str:
        """The same for a text that is known to stay."""
        for rule in self.rules.values():
            if isinstance(rule, TextRule) and rule.edits:
                text = rule.apply(text)
        return text

    def describe(self) -> list[dict[str, Any]]:
        """What decides the result, as JSON has it. Raises ModuleNotFoundError if a package is missing."""
        return [{"rule": name, **rule.describe()} for name, rule in self.rules.items()]


@path_errors()
def parse_rules(texts: Iterable[str]) -> Cleaning:
    """The rules of several `NAME:option=value,option=value`. What follows a comma without a name belongs to the value before.

    Raises UserError for unknown names, options and values, ModuleNotFoundError or FileNotFoundError for what a rule needs.
    """
    rules: dict[str, Rule] = {}
    for text in texts:
        name, _, options = text.partition(":")
        if name not in RULES:
            raise UserError(f"rule {name!r} is unknown: choose one of {', '.join(RULES)}")
        if name in rules:
            raise UserError(f"rule {name} is given twice: give it once, with all of its options")
        rules[name] = _rule(name, options)
    return Cleaning(rules)


def _rule(name: str, text: str) -> Rule:
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
        raise UserError(f"rule {name}: {option} is {error['input']!r}: {error['msg']}") from None
    rule.describe()  # what is missing ends the command before it reads anything
    return rule
