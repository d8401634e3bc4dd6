"""A process waits for its rank."""

import os
import signal
from collections.abc import Iterator

import pytest

from megatape.reliability.standby import PIPE_VARIABLE, assignment, has_rank_pipe, wait_for_rank


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """End of the pipe to which the supervisor writes."""
    reader, writer = os.pipe()
    monkeypatch.setenv(PIPE_VARIABLE, str(reader))
    earlier_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield writer
    signal.signal(signal.SIGINT, earlier_handler)


def test_a_process_gets_its_rank(writer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on, Ctrl-C ends the process, and a child of it gets no rank."""
    # The test ends with the variable as it was, also if it was not set.
    monkeypatch.setenv("RANK", "")
    assert has_rank_pipe()
    os.write(writer, assignment({"RANK": "3"}, 12.5))
    os.close(writer)
    assert wait_for_rank() == 12.5
    assert os.environ["RANK"] == "3"
    assert not has_rank_pipe()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_process_that_is_not_needed_ends(writer: int) -> None:
    os.close(writer)
    with pytest.raises(SystemExit) as end:
        wait_for_rank()
    assert end.value.code == 0
