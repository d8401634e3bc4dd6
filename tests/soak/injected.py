"""Faults inside the ranks of the torture. `megatape supervise --import` imports this module in every rank.

It shortens the watch's timeouts, and registers the callback "faults", which carries out commands before steps. The torture
writes a command for a rank to a file.
"""

import json
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatape.entries import Entry
from megatape.registry import CALLBACKS
from megatape.reliability.watch import timeouts
from megatape.reliability.watch.timeouts import WatchTimeouts
from megatape.training.callbacks.callback import Callback

if TYPE_CHECKING:
    from torch import Tensor

# Environment variable naming the folder for commands
FOLDER_VARIABLE = "SOAK_FAULTS"
# A busy machine may keep a healthy rank from its heartbeat for some seconds.
TIMEOUTS = WatchTimeouts(period=0.5, silence=20.0, suspicion=5.0, step=60.0, long=90.0, stall=300.0, grace=2.0)
REAL_TIME = time.time


class JumpingClock:
    """time.time with an offset, in seconds."""

    offset = 0.0

    def __call__(self) -> float:
        return REAL_TIME() + self.offset


CLOCK = JumpingClock()


def command_path(folder: Path, rank: int) -> Path:
    """Return the file with the next command for a rank."""
    return folder / f"rank-{rank}.json"


class Faults(Callback):
    """Carries out commands before steps."""

    def before_step(self, step: int) -> None:
        path = command_path(Path(os.environ[FOLDER_VARIABLE]), self.run.topology.rank)
        try:
            command = json.loads(path.read_text())
        except FileNotFoundError:
            return
        path.unlink()
        self._carry_out(**command)

    def _carry_out(self, kind: str, amount: float) -> None:
        if kind == "clock":
            CLOCK.offset += amount
        elif kind == "slow":
            time.sleep(amount)
        elif kind == "nan":
            self._spoil_a_gradient(amount)
        else:
            raise ValueError(f"unknown fault {kind!r}")

    def _spoil_a_gradient(self, place: float) -> None:
        """Make one element of a parameter's next gradient NaN."""
        parameters = [parameter for parameter in self.run.engine.state.parameters.values() if parameter.requires_grad]
        parameter = parameters[int(place * len(parameters))]

        def spoil(gradient: "Tensor") -> "Tensor":
            handle.remove()
            spoiled = gradient.clone()
            spoiled[(0,) * spoiled.dim()] = math.nan
            return spoiled

        handle: Any = parameter.register_hook(spoil)


if FOLDER_VARIABLE in os.environ:
    time.time = CLOCK
    timeouts.timeouts_of_environment = lambda: TIMEOUTS
    CALLBACKS["faults"] = Entry("injected:Faults", "carries out faults of the soak")
