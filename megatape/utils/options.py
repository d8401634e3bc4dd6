"""Typed options: what a command or an evaluation task can be given, from which its parser, help and documentation come.

Descriptions of fields stand in the docstring of their class.
"""

import inspect
import re
import shlex
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from megatape.errors import UserError
from megatape.utils.files import Result, describe_fault


class DocumentedModel(BaseModel):
    """Base of models whose docstrings describe their fields in a section "Attributes"."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        _, descriptions = split_docstring(cls)
        for name in descriptions.keys() & cls.model_fields.keys():
            cls.model_fields[name].description = descriptions[name]


def split_docstring(kind: type) -> tuple[str, dict[str, str]]:
    """The docstring of a class up to its section "Attributes", and the descriptions there by name, each on one line."""
    text, _, attributes = inspect.cleandoc(kind.__doc__ or "").partition("\n\nAttributes:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE)
    return text, {name: " ".join(description.split()) for name, description in entries}


Paragraphs = Iterable[str]  # that a command prints, each as soon as it is known


class Line(str):
    """A paragraph of one line, such as the result of a model. Adjacent ones are printed without an empty line between them."""

    __slots__ = ()


Value = TypeVar("Value")


def split_commas(value: Any) -> Any:
    """The parts of a text such as "1,8"."""
    return value.split(",") if isinstance(value, str) else value


def check_words(text: str) -> str:
    """A text as it is. Raises ValueError if a shell could not divide it into words."""
    shlex.split(text)
    return text


Words = Annotated[str, AfterValidator(check_words)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]  # of nodes, seconds, bytes of a record, ...
Listed = Annotated[tuple[Value, ...], BeforeValidator(split_commas)]  # written with commas between the values


def option(
    default: Any = PydanticUndefined,
    *,
    description: str | None = None,
    ge: float | None = None,
    **argument: Any,
) -> Any:
    """A field of options. One without a default is required.

    The docstring of the class describes it, by a phrase for the help and the documentation, without the default.

    Args:
        default: value if the option is not given.
        description: instead of the docstring's, for a text that is made from other things.
        ge: smallest value.
        argument: form on the command line: `metavar`; `positional=True`; `repeatable=True` for a list that is given one value
            at a time; `nargs` and `const` as argparse has them; `flag`, if it is not the name of the field; `completions`,
            names that shells complete, if the type does not list the values.

    Returns:
        A pydantic field, to be assigned or to stand in `Annotated`.
    """
    return Field(default, description=description, ge=ge, json_schema_extra={"argument": argument})


def argument_of(field: FieldInfo) -> dict[str, Any]:
    """The form of a field on the command line, as `option` was given it."""
    extra = field.json_schema_extra
    return extra["argument"] if isinstance(extra, dict) else {}  # type: ignore[return-value]


class CommandOptions(DocumentedModel):
    """Base of the options of all commands.

    Attributes:
        at_most_one: names of fields of which one may be given, for each such group.
        exactly_one: names of fields of which one must be given, for each such group.
        resumable: whether the command keeps what is done when it is interrupted.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, defer_build=True)
    at_most_one: ClassVar[tuple[tuple[str, ...], ...]] = ()
    exactly_one: ClassVar[tuple[tuple[str, ...], ...]] = ()
    resumable: ClassVar[bool] = False

    def fill(self, target: Callable[..., Result], **values: Any) -> Result:
        """Call a function or a class, whose parameters have the names of options.

        Args:
            target: The function or class.
            values: Parameters that no option has, or with another value than the option's.

        Returns:
            What it returns.
        """
        names = inspect.signature(target).parameters.keys() & type(self).model_fields.keys()
        return target(**{name: getattr(self, name) for name in names} | values)


Options = TypeVar("Options", bound=CommandOptions)


def read_options(kind: type[Options], values: dict[str, Any]) -> Options:
    """Options with these values, which may be text; values of other names are ignored.

    Raises:
        UserError: A value is missing, has another type or is out of bounds. The message begins with the field's name.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        raise UserError(describe_fault(fault, str(fault["loc"][0]))) from None
