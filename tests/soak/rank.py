"""One rank in the soak: `megatape pretrain` with a watch finding hanging ranks within seconds."""

import faulthandler
import os
import sys
from unittest.mock import patch

from megatape.commands.cli.main import main as megatape
from megatape.reliability.watch.timeouts import WatchTimeouts

# A busy machine may keep a healthy rank from its heartbeat for some seconds.
TIMEOUTS = WatchTimeouts(period=0.5, silence=10.0, suspicion=5.0, step=15.0, long=20.0, stall=60.0, grace=2.0)


def main(words: list[str]) -> int:
    """Run `megatape pretrain WORDS`. SIGABRT prints all threads' stacks.

    Ranks of the fork server have torchrun's variable, so that they stop when the server is gone, as they do for torchrun.
    """
    faulthandler.enable()
    # `deepspeed` has not started this rank.
    if "CROSS_RANK" not in os.environ:
        os.environ["TORCHELASTIC_RUN_ID"] = "soak"
    with patch("megatape.training.pretrain.timeouts_of_environment", lambda: TIMEOUTS):
        return megatape(["pretrain", *words])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
