"""Keeping DeepSpeed's launcher from printing a dozen lines around a run's own."""

from collections.abc import Sequence
from pathlib import Path

from megatape.distributed.launch.launchers import DEEPSPEED_COMMANDS

# --verbose is an option of MegaTAPE's commands.
LOG_OPTIONS = ("--quiet", "--log_level", "--verbose")


def quiet_launcher(words: Sequence[str]) -> list[str]:
    """Add --quiet to a command of DeepSpeed's launcher, unless it has a logging option. Other commands are unchanged.

    Args:
        words: Command and arguments.
    """
    has_log_option = any(word.partition("=")[0] in LOG_OPTIONS for word in words)
    if has_log_option or Path(words[0]).name not in DEEPSPEED_COMMANDS:
        return list(words)
    return [words[0], "--quiet", *words[1:]]
