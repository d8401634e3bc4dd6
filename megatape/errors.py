"""Errors that a user sees as one line, and the exit status of a command."""

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum

MAX_LISTED = 10  # maximum number of names in a message that suggests the nearest one


class ExitStatus(IntEnum):
    """How a training run ended, on which `megatape supervise` and the batch script act. docs/faults.md has the same table.

    Every other status is a death, too: 134, 137 or 139 of a process that a signal ended, and 256 minus the signal's number,
    such as 247, where DeepSpeed's launcher reports one.
    """

    DONE = 0  # all steps are made, or a user at the keyboard asked for the end
    DIED = 1  # a rank died, hung, ran out of memory after a first step, or had an internal error: restarted while it advances
    USER_ERROR = 2  # arguments, configuration, files, or too little memory for a first step: not started again
    DIVERGED = 3  # loss or weights are not finite: not started again
    NOT_SAVED = 74  # EX_IOERR of sysexits.h, the last checkpoint could not be written: started again after a pause
    UNFINISHED = 75  # EX_TEMPFAIL of sysexits.h, a scheduler asked for the end and a checkpoint was written: resumed
    INTERRUPTED = 130  # a user at the keyboard asked for the end before the first step: not started again


class UserError(ValueError):
    """Something that the user can correct: it says what is wrong, where, with which value, and what to do.

    It is shown in one line. Any other exception is a fault of the program or the machine and keeps its traceback. Its text is
    its only argument, so that ranks can exchange it.

    Attributes:
        status: that the command exits with.
        everywhere: whether all ranks raise it, so that one of them tells.
    """

    status = ExitStatus.USER_ERROR
    everywhere = False


class ConfigError(UserError):
    """A configuration is missing, malformed or contradicts itself."""


class CheckpointError(UserError):
    """A checkpoint is of no use here, which says nothing about its content: another version's, or without its base."""


class RecordError(UserError):
    """A record of fine-tuning data is not of its format. It is counted and skipped."""


class RankMismatch(UserError):
    """Ranks were given different things, or one of them cannot begin. Raised on all ranks."""

    everywhere = True


class OutOfMemory(UserError):
    """A rank ran out of memory, or would run out of it in its first step."""


class LeaseLost(UserError):
    """Another run has taken over the run's folder, because this one gave no sign of life."""


class DataError(UserError):
    """A rank could not read its samples: a shard is missing, was changed, or its file system is away. Raised on all ranks."""

    status = ExitStatus.DIED
    everywhere = True


class TrainingDiverged(UserError):
    """Loss, gradient norm or weights have become NaN or infinite, or differ between replicas. Raised on all ranks."""

    status = ExitStatus.DIVERGED
    everywhere = True


class PathError(OSError, UserError):
    """A path or an address of the user's cannot be read or written. It keeps the errno of its cause."""


class MissingPath(FileNotFoundError, PathError):
    """Nothing has this name."""


class ExistingPath(FileExistsError, PathError):
    """Something that must not be replaced has this name."""


class NotSaved(PathError):
    """The last steps of a run are in no checkpoint, because none could be written. Raised on all ranks."""

    status = ExitStatus.NOT_SAVED
    everywhere = True


@contextmanager
def path_errors() -> Iterator[None]:
    """Raise PathError from an OSError of the block or, as a decorator, of the function, which opens paths of the user's."""
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
    """Turn errors of the block, which reads content of the user's, into UserError "FAULT (ERROR): REMEDY".

    Args:
        fault: What is wrong, and where.
        remedy: What to do.
        kinds: Types of the errors. UserError is a ValueError, too.
    """
    try:
        yield
    except kinds as error:
        raise UserError(f"{fault} ({error}): {remedy}") from error


def path_error(error: OSError, text: str | None = None) -> PathError:
    """A PathError of the same kind, which keeps the errno of `error` and whether all ranks raise it.

    text: by default its own, with what to do about a file where a folder is needed.
    """
    kinds: dict[type[OSError], type[PathError]] = {FileNotFoundError: MissingPath, FileExistsError: ExistingPath}
    if text is None:
        in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
        text = f"{error}: a file is where a folder is needed: move it, or give another name" if in_the_way else str(error)
    found = kinds.get(type(error), PathError)(text)
    found.errno = error.errno
    found.everywhere = getattr(error, "everywhere", False)
    return found


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A question about the nearest of some names, such as "did you mean tape? "; empty if none is near."""
    close = difflib.get_close_matches(name, [*names], n=1)
    return f"did you mean {close[0]}? " if close else ""


def choose_one(name: str, names: Iterable[str]) -> str:
    """Return advice about an unknown name.

    Args:
        name: Unknown name.
        names: Known names, in the order of the list.

    Returns:
        Advice such as "did you mean tape? choose one of tape, rope". With more than MAX_LISTED names, only the similar one, if
        there is one.
    """
    known = [*names]
    question = did_you_mean(name, known)
    if question and len(known) > MAX_LISTED:
        return question.strip()
    return f"{question}choose one of {', '.join(known)}"


def check_line(text: str) -> str:
    """Check a value that becomes part of a line of a script, a host file or the environment.

    Returns:
        The text.

    Raises:
        UserError: It has a control character, such as a line break, after which a shell would read another command.
    """
    if found := re.search(r"[\x00-\x1f\x7f-\x9f]", text):
        raise UserError(f"{text!r} has the control character {found[0]!r}: remove it")
    return text


def check_word(text: str) -> str:
    """Check a value, such as a path, that becomes a word of a command line.

    Returns:
        The text.

    Raises:
        UserError: The text begins with "-" like an option, or has a control character.
    """
    if text.startswith("-"):
        raise UserError(f"{text!r} begins with -, so programs would take it for an option: write ./{text} or another name")
    return check_line(text)


def check_text(text: str, what: str) -> str:
    """Check a text of the user's, which has lone surrogates if it was not in the encoding of the terminal.

    Args:
        text: The text.
        what: Its name in the error.

    Returns:
        The text.

    Raises:
        UserError: It is not valid UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{what} {text!r:.60} is not valid UTF-8: give it in the encoding of the terminal") from None
    return text
