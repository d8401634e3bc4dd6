"""Errors on this rank caused by another one."""

import torch.distributed as dist

from megatape.errors import ExitStatus

# Words in messages of gloo and NCCL after losing the connection to another rank.
LOST_CONNECTION = ("gloo", "Connection closed", "Connection reset", "NCCL")


class RankFailed(RuntimeError):
    """Another rank failed, died, hung or was cut off. The message names it.

    Args:
        text: Message.
        status: Exit status of the run. After a UserError, which the other rank has printed, the status of that error.
    """

    def __init__(self, text: str, status: int = ExitStatus.DIED) -> None:
        super().__init__(text)
        self.status = status


def is_collective_error(error: Exception) -> bool:
    """Whether a collective raised this error because another rank is gone."""
    if isinstance(error, dist.DistError):
        return True
    # gloo has no exception type of its own.
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    return any(word in text for word in LOST_CONNECTION)
