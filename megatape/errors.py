"""What a command tells its user when it fails: one line for a user's error, and the status that it exits with."""

import re
from enum import IntEnum


class UserError(ValueError):
    """Something that the user can correct: it says what is wrong, where, with which value, and what to do.

    It is shown in one line. Any other exception is a fault of the program or the machine and keeps its traceback. Where a path
    of the user's is opened, raise it from the OSError."""


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


class ExitStatus(IntEnum):
    """How a training run ended, on which `megatape supervise` and the batch script act. docs/training.md has the same table.

    Every other status is a death, too: 134, 137 or 139 of a process that a signal ended, and 256 minus the signal's number,
    such as 247, where DeepSpeed's launcher reports one."""

    DONE = 0  # all steps are made, or a user at the keyboard asked for the end
    DIED = 1  # a rank died, hung or met an internal error: started again while the run advances
    USER_ERROR = 2  # arguments, configuration or files: not started again
    DIVERGED = 3  # loss or weights are not finite: not started again
    NOT_SAVED = 74  # EX_IOERR of sysexits.h, the last checkpoint could not be written: started again after a pause
    UNFINISHED = 75  # EX_TEMPFAIL of sysexits.h, a scheduler asked for the end and a checkpoint was written: resumed
    INTERRUPTED = 130  # a user at the keyboard asked for the end before the first step: not started again
