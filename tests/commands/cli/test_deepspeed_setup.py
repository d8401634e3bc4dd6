"""DeepSpeed's log shows only errors, unless the user asks for more."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from megatape.commands.cli.deepspeed_setup import prepare_deepspeed
from tests.helpers.checks.import_graph import ROOT


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("DeepSpeed")
    filters = list(logger.filters)
    yield logger
    logger.filters = filters


def test_only_errors_of_deepspeed(logger: logging.Logger) -> None:
    """The filter is set before DeepSpeed's import, which then configures the same logger."""
    prepare_deepspeed()
    from deepspeed.utils import logger as theirs

    assert theirs is logger
    for level, shown in ((logging.WARNING, False), (logging.ERROR, True)):
        assert bool(theirs.filter(theirs.makeRecord("DeepSpeed", level, "file", 1, "text", (), None))) == shown


# A rank whose store ends, as if rank 0 had ended.
LOST_STORE = """
import sys
from megatape.commands.cli.deepspeed_setup import prepare_deepspeed
prepare_deepspeed(verbose=sys.argv[1] == "verbose")
from torch.distributed import DistNetworkError, TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
client = TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False)
client.set("a", "b")
del store
try:
    while True:
        client.set("a", "c")
except DistNetworkError:
    print("lost")
"""


@pytest.mark.parametrize("amount", ["errors", "verbose"])
def test_no_stack_frames_of_torch_after_the_end_of_rank_0(amount: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_CPP_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", LOST_STORE, amount], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "lost\n", done.stderr
    assert ("frame #0" in done.stderr) == (amount == "verbose"), done.stderr
