"""Preparation of the import of DeepSpeed."""

import logging
import os


def prepare_deepspeed(verbose: bool = False) -> None:
    """Check the environment variables that DeepSpeed reads on import, and log only errors of DeepSpeed and of torch's C++ code.

    Call it before importing torch, which reads TORCH_CPP_LOG_LEVEL on import. Otherwise each rank would print a warning with
    stack frames for every call that no longer reaches the store after rank 0 has ended.

    Args:
        verbose: Whether to show the whole logs of DeepSpeed and torch.

    Raises:
        UserError: A variable has an invalid value.
    """
    from megatape.reliability.watch.timeouts import timeouts_of_environment

    timeouts_of_environment()
    if not verbose:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno >= logging.ERROR)
