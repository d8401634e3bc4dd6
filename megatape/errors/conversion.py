"""Converts other errors into UserErrors."""

from collections.abc import Iterator
from contextlib import contextmanager

from megatape.errors.user_errors import ExistingPath, MissingPath, PathError, UserError, marked_message


@contextmanager
def path_errors() -> Iterator[None]:
    """Turn OSErrors of a block into PathErrors. Also a decorator, for functions that open the user's paths."""
    try:
        yield
    except OSError as error:
        if isinstance(error, UserError):
            raise
        raise path_error(error) from error


@contextmanager
def content_errors(
    reason: str, remedy: str, kinds: type[Exception] | tuple[type[Exception], ...] = ValueError
) -> Iterator[None]:
    """Turn errors of a block that reads the user's content into UserErrors "REASON (ERROR): REMEDY".

    Args:
        reason: Beginning of the message, such as "run.json: not JSON".
        remedy: Advice in the imperative.
        kinds: Exception types to convert. UserError is a ValueError, too.
    """
    try:
        yield
    except kinds as error:
        raise UserError(f"{reason} ({marked_message(error)}): {remedy}") from error


def path_error(error: OSError, text: str | None = None) -> PathError:
    """Return a PathError of the same kind as an OSError, with the same errno.

    Args:
        error: Original error.
        text: Message. By default the original one, with advice if a file is in place of a folder.
    """
    if text is None:
        text = str(error)
        if isinstance(error, FileExistsError | NotADirectoryError):
            text += ": a file is where a folder is needed: move it, or give another name"
    kinds: dict[type[OSError], type[PathError]] = {FileNotFoundError: MissingPath, FileExistsError: ExistingPath}
    kind = kinds.get(type(error), PathError)
    return kind.like(error, text)
