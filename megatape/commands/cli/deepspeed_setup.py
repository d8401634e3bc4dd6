"""Settings that must be made before importing DeepSpeed."""

import logging
import os


def prepare_deepspeed(verbose: bool = False) -> None:
    """Check the environment variables that DeepSpeed reads on import, and hide its log and torch's C++ log, except errors.

    Call this before importing torch, which reads TORCH_CPP_LOG_LEVEL on import. Otherwise, after rank 0 has ended, each rank
    prints a warning with stack frames for every call that does not reach the store.

    Args:
        verbose: Whether to show the full logs of DeepSpeed and torch.

    Raises:
        UserError: A variable has an invalid value.
    """
    from megatape.reliability.watch.timeouts import timeouts_of_environment

    timeouts_of_environment()
    if not verbose:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno >= logging.ERROR)
