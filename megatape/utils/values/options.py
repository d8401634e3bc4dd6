"""Typed options of commands and evaluation tasks, described in the docstrings of their classes.

Parser, help and documentation are generated from them.
"""

import shlex
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from megatape.errors import UserError, flag
from megatape.utils.values.documented_model import DocumentedModel
from megatape.utils.values.validation import describe_mismatch

Value = TypeVar("Value")


def split_commas(value: Any) -> Any:
    """Split a text such as "1,8" at its commas. Return other values unchanged."""
    if isinstance(value, str):
        return value.split(",")
    return value


def check_words(text: str) -> str:
    """Return the text if a shell can split it into words. Raise a ValueError if a quotation does not end."""
    shlex.split(text)
    return text


# Another program's command line.
Words = Annotated[str, AfterValidator(check_words)]
# Positive number of nodes, seconds, bytes and the like.
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
# Values separated by commas.
Listed = Annotated[tuple[Value, ...], BeforeValidator(split_commas)]


@dataclass(frozen=True)
class ArgumentForm:
    """Form of an option on the command line.

    Attributes:
        metavar: Placeholder for the value in the usage, or None for the option's name or choices.
        positional: Whether it has no flag.
        repeatable: Whether it is a list, with one value each time it is given.
        flag: Flag, if it is not the field's name.
        nargs: argparse's number of values, or None to follow the type.
        const: Value if the option is given without one, for nargs "?".
        completions: Names that shells complete, if the type does not list the values.
        hidden: Whether only the program sets it, so it is no option.
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
    """Declare an option, which is required if it has no default.

    Describe it in the class docstring by a phrase without the default. Help and documentation show it.

    Args:
        default: Value if the option is not given.
        description: Computed description, instead of the docstring's.
        ge: Minimum value.
        form: Attributes of ArgumentForm.

    Returns:
        A pydantic field, to assign or to use in `Annotated`.
    """
    extra: Any = {"form": ArgumentForm(**form)}
    return Field(default, description=description, ge=ge, json_schema_extra=extra)


def form_of(field: FieldInfo) -> ArgumentForm:
    """Return the form that `option` declared for a field."""
    extra: Any = field.json_schema_extra
    if not isinstance(extra, dict):
        return ArgumentForm()
    form: ArgumentForm = extra["form"]
    return form


class CommandOptions(DocumentedModel):
    """Base class of all commands' options.

    Each field is an option described in its class docstring, unless it is declared with `option(hidden=True)`.

    Attributes:
        at_most_one: Groups of fields that exclude each other.
        exactly_one: Groups of fields of which exactly one is required.
        resumable: Whether running an interrupted command again continues it.
        lists: Lists below the options in the help: heading -> name -> description.
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
        values: Values by name, as text or typed. Unknown names are ignored.

    Raises:
        UserError: A value is missing, has another type or is out of bounds. The message begins with the field's name.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise _option_error(error) from None


def settings_from(options: CommandOptions, kind: type[Value]) -> Value:
    """Make settings of the options with the names of their fields, and check them.

    Args:
        options: Options of a command.
        kind: Dataclass of the settings.

    Raises:
        UserError: An option is out of the bounds of its field.
    """
    names = {field.name for field in fields(cast("Any", kind))}
    try:
        return TypeAdapter(kind).validate_python(options.model_dump(include=names))
    except ValidationError as error:
        raise _option_error(error) from None


def _option_error(error: ValidationError) -> UserError:
    """Return the error about the first invalid option."""
    details = error.errors()[0]
    name = str(details["loc"][0])
    return UserError(describe_mismatch(details, flag(name)))
