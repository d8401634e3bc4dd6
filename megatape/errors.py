"""Errors that a user sees as one line, and the exit status of a command."""

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum

# Maximum number of names in a message that suggests the nearest one.
MAX_LISTED = 10


class ExitStatus(IntEnum):
    """How a training run ended, on which `megatape supervise` and the batch script act. docs/faults.md has the same table.

    Every other status means that a rank died, too: 134, 137 or 139 of a process killed by a signal, and 256 minus the signal's
    number, such as 247, where DeepSpeed's launcher reports one.
    """

    # All steps are done, or a user at the keyboard asked for the end.
    DONE = 0
    # A rank died, hung, ran out of memory after a first step, or had an internal error. Restarted while the run advances.
    DIED = 1
    # Arguments, configuration, files, or too little memory for a first step. Not restarted.
    USER_ERROR = 2
    # Loss or weights are not finite. Not restarted.
    DIVERGED = 3
    # The last checkpoint could not be written (EX_IOERR of sysexits.h). Restarted after a pause.
    NOT_SAVED = 74
    # A scheduler asked for the end and a checkpoint was written (EX_TEMPFAIL of sysexits.h). Resumed.
    UNFINISHED = 75
    # A user at the keyboard asked for the end before the first step. Not restarted.
    INTERRUPTED = 130


class UserError(ValueError):
    """An error that the user can correct. It says what is wrong, where, with which value, and what to do.

    Commands show it in one line. Any other exception is a fault of the program or the machine and keeps its traceback. The text
    is the only argument, so that ranks can exchange it.

    Attributes:
        status: Exit status of the command.
        everywhere: Whether all ranks raise it, so that only one of them shows it.
    """

    status = ExitStatus.USER_ERROR
    everywhere = False


class ConfigError(UserError):
    """A configuration is missing, malformed or contradicts itself."""


class CheckpointError(UserError):
    """A checkpoint cannot be used here, though its content may be intact: another version wrote it, or its base is missing."""


class RecordError(UserError):
    """A record of fine-tuning data does not match its format. It is counted and skipped."""


class RankMismatch(UserError):
    """Ranks were given different things, or one of them cannot begin. Raised on all ranks."""

    everywhere = True


class OutOfMemory(UserError):
    """A rank ran out of memory, or would run out of it in its first step."""


class LeaseLost(UserError):
    """Another run has taken over the run's folder, because this one gave no sign of life."""


class DataError(UserError):
    """A rank could not read its samples: a shard is missing or was changed, or its file system is away. Raised on all ranks."""

    status = ExitStatus.DIED
    everywhere = True


class TrainingDiverged(UserError):
    """Loss, gradient norm or weights have become NaN or infinite, or differ between replicas. Raised on all ranks."""

    status = ExitStatus.DIVERGED
    everywhere = True


class PathError(OSError, UserError):
    """A path or address given by the user cannot be read or written. It keeps the errno of its cause."""


class MissingPath(FileNotFoundError, PathError):
    """A path or address does not exist."""


class ExistingPath(FileExistsError, PathError):
    """A path exists already and must not be replaced."""


class NotSaved(PathError):
    """The last steps of a run are in no checkpoint, because none could be written. Raised on all ranks."""

    status = ExitStatus.NOT_SAVED
    everywhere = True


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


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question about the most similar name, such as "did you mean tape? ", or "" if no name is similar."""
    close = difflib.get_close_matches(name, [*names], n=1)
    if not close:
        return ""
    return f"did you mean {close[0]}? "


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
        UserError: The text has a control character, such as a line break, after which a shell would read another command.
    """
    found = re.search(r"[\x00-\x1f\x7f-\x9f]", text)
    if found:
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
    """Check a text given by the user, which has lone surrogates if it was not in the encoding of the terminal.

    Args:
        text: The text.
        what: Name of the text in the error.

    Returns:
        The text.

    Raises:
        UserError: The text is not valid UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{what} {text!r:.60} is not valid UTF-8: give it in the encoding of the terminal") from None
    return text
