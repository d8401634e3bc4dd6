"""One rank of a run in the soak: `megatape pretrain`, whose watch needs seconds to find a rank that hangs, and not minutes."""

import faulthandler
import os
import sys
from unittest.mock import patch

from megatape.commands.cli.main import main as megatape
from megatape.reliability.watch.timeouts import WatchTimeouts

# A busy machine may keep a rank that is well from its heartbeat for some seconds.
TIMEOUTS = WatchTimeouts(period=0.5, silence=10.0, suspicion=5.0, step=15.0, long=20.0, stall=60.0, grace=2.0)


def main(words: list[str]) -> int:
    """`megatape pretrain WORDS`. SIGABRT shows where all threads are. Ranks of the fork server, which sets what torchrun does,
    look after it as after torchrun: they stop when it is gone."""
    faulthandler.enable()
    if "CROSS_RANK" not in os.environ:  # not under `deepspeed`
        os.environ["TORCHELASTIC_RUN_ID"] = "soak"
    with patch("megatape.training.pretrain.timeouts_of_environment", lambda: TIMEOUTS):
        return megatape(["pretrain", *words])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
