"""Typed options of commands and evaluation tasks. Parser, help and documentation are made from them.

Descriptions of fields stand in the docstring of their class.
"""

import shlex
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from megatape.errors import UserError
from megatape.utils.documented_model import DocumentedModel
from megatape.utils.validation import describe_fault

Value = TypeVar("Value")


def split_commas(value: Any) -> Any:
    """Split a text such as "1,8" at its commas. Other values are returned unchanged."""
    if isinstance(value, str):
        return value.split(",")
    return value


def check_words(text: str) -> str:
    """Check that a shell can split a text into words.

    Returns:
        The text, unchanged.

    Raises:
        ValueError: A quotation does not end.
    """
    shlex.split(text)
    return text


# Command line of another program.
Words = Annotated[str, AfterValidator(check_words)]
# Positive number of nodes, seconds, bytes and other things.
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
# Values with commas between them.
Listed = Annotated[tuple[Value, ...], BeforeValidator(split_commas)]


@dataclass(frozen=True)
class ArgumentForm:
    """Form of an option on the command line.

    Attributes:
        metavar: Placeholder for the value in the usage. None: the name of the option, or its choices.
        positional: Whether it is given without a flag.
        repeatable: Whether it is a list, with one value each time it is given.
        flag: Flag, if it is not the name of the field.
        nargs: Number of values, as argparse takes it. None: by the type.
        const: Value of an option that is given without one, with nargs "?".
        completions: Names that shells complete, if the type does not list the values.
        hidden: Whether it is a value that the program sets, and no option.
    """

    metavar: str | None = None
    positional: bool = False
    repeatable: bool = False
    flag: str | None = None
    nargs: str | None = None
    const: str | None = None
    completions: tuple[str, ...] = ()
    hidden: bool = False


def option(
    default: Any = PydanticUndefined,
    *,
    description: str | None = None,
    ge: float | None = None,
    **form: Any,
) -> Any:
    """Declare an option. An option without a default is required.

    The docstring of the class describes the option by a phrase for the help and the documentation, without its default.

    Args:
        default: Value if the option is not given.
        description: Description in place of the docstring's, if it is computed.
        ge: Minimum value.
        form: Attributes of ArgumentForm.

    Returns:
        A pydantic field, to be assigned or used in `Annotated`.
    """
    extra: Any = {"form": ArgumentForm(**form)}
    return Field(default, description=description, ge=ge, json_schema_extra=extra)


def form_of(field: FieldInfo) -> ArgumentForm:
    """Return the form of a field on the command line, as `option` declared it."""
    extra: Any = field.json_schema_extra
    if not isinstance(extra, dict):
        return ArgumentForm()
    form: ArgumentForm = extra["form"]
    return form


class CommandOptions(DocumentedModel):
    """Base of the options of all commands.

    Each field is an option, which the docstring of its class describes, unless it is declared with `option(hidden=True)`.

    Attributes:
        at_most_one: Groups of fields that exclude each other.
        exactly_one: Groups of fields that exclude each other, one of which is required.
        resumable: Whether an interrupted command continues when it is run again.
        lists: Lists that the help shows below the options: heading -> name -> description.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, defer_build=True)
    at_most_one: ClassVar[tuple[tuple[str, ...], ...]] = ()
    exactly_one: ClassVar[tuple[tuple[str, ...], ...]] = ()
    resumable: ClassVar[bool] = False
    lists: ClassVar[dict[str, dict[str, str]]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            if field.description is None and not form_of(field).hidden:
                raise TypeError(
                    f"{cls.__module__}.{cls.__qualname__} does not describe `{name}`: add a line about it to the section "
                    '"Attributes" of the docstring, or declare it by option(hidden=True) if it is no option'
                )


Options = TypeVar("Options", bound=CommandOptions)


def read_options(kind: type[Options], values: dict[str, Any]) -> Options:
    """Check values, and return them as options.

    Args:
        kind: Type of the options.
        values: Values by name, as text or with their types. Unknown names are ignored.

    Raises:
        UserError: A value is missing, has another type or is out of bounds. The message begins with the field's name.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        name = str(fault["loc"][0])
        raise UserError(describe_fault(fault, name)) from None
