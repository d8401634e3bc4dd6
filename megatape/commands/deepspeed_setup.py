"""Preparation of the import of DeepSpeed."""

import logging
import os


def prepare_deepspeed(verbose: bool = False) -> None:
    """Check the environment variables that DeepSpeed reads on import, and unless `verbose` only log its errors.

    The same holds for the log of torch's C++ code: when rank 0 has ended, each other rank would print a warning with stack
    frames for every call that no longer reaches the store. Torch reads the variable on import.

    Args:
        verbose: Whether to show the whole logs of DeepSpeed and torch.

    Raises:
        UserError: As `limits_of_environment`.
    """
    from megatape.reliability.limits import limits_of_environment

    limits_of_environment()
    if not verbose:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno >= logging.ERROR)
