"""Conversion of other errors into errors that a user sees as one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from megatape.errors.user_errors import ExistingPath, MissingPath, PathError, UserError


@contextmanager
def path_errors() -> Iterator[None]:
    """Turn OSErrors of a block or, as a decorator, of a function into PathErrors. It opens paths given by the user."""
    try:
        yield
    except OSError as error:
        if isinstance(error, UserError):
            raise
        raise path_error(error) from error


@contextmanager
def content_errors(
    fault: str, remedy: str, kinds: type[Exception] | tuple[type[Exception], ...] = ValueError
) -> Iterator[None]:
    """Turn errors of a block that reads the user's content into UserErrors "FAULT (ERROR): REMEDY".

    Args:
        fault: Description of the fault, and where it is.
        remedy: Advice, in the imperative.
        kinds: Types of the errors. UserError is a ValueError, too.
    """
    try:
        yield
    except kinds as error:
        raise UserError(f"{fault} ({error}): {remedy}") from error


def path_error(error: OSError, text: str | None = None) -> PathError:
    """Return a PathError of the same kind as an OSError, with the same errno.

    Args:
        error: The OSError.
        text: Message, by default that of the OSError, with advice about a file in place of a folder.
    """
    if text is None:
        text = str(error)
        if isinstance(error, FileExistsError | NotADirectoryError):
            text += ": a file is where a folder is needed: move it, or give another name"
    kinds: dict[type[OSError], type[PathError]] = {FileNotFoundError: MissingPath, FileExistsError: ExistingPath}
    kind = kinds.get(type(error), PathError)
    found = kind(text)
    found.errno = error.errno
    found.everywhere = getattr(error, "everywhere", False)
    return found
