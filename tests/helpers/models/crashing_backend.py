"""Attention backend crashing its process, as a module for --import."""

import os
from typing import Any

from torch import Tensor

from megatape.attention.backends.blocked import Blocked
from megatape.registry import BACKENDS, Entry


class Crashing(Blocked):
    """Backend aborting its process, like a kernel reading out of bounds."""

    def attend(self, *arguments: Any) -> tuple[Tensor, Tensor | None]:
        os.abort()


BACKENDS["crashing"] = Entry(f"{__name__}:{Crashing.__name__}", "takes its process with it")
