"""Exit statuses of commands."""

from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit status of a training run. `megatape supervise` and the batch script act on it; docs/faults.md has the same table.

    All other statuses mean that a rank died, too: 134, 137 or 139 after a signal, or 256 minus the signal's number, such as
    247, from DeepSpeed's launcher.
    """

    # All steps are done, or a user at the keyboard stopped the run.
    DONE = 0
    # A rank died, hung, ran out of memory after its first step, or had an internal error. Restarted while the run advances.
    DIED = 1
    # Arguments, configuration, files, or too little memory for the first step. Not restarted.
    USER_ERROR = 2
    # Loss or weights are not finite. Not restarted.
    DIVERGED = 3
    # The last checkpoint could not be written (EX_IOERR of sysexits.h). Restarted after a pause.
    NOT_SAVED = 74
    # A scheduler stopped the run, and a checkpoint was written (EX_TEMPFAIL of sysexits.h). Resumed.
    UNFINISHED = 75
    # A user at the keyboard stopped the run before its first step. Not restarted.
    INTERRUPTED = 130
