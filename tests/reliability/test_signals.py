"""Signal handlers, inside a block and after it."""

import os
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from megatape.reliability.signals import handled


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("ends_process", [False, True])
def test_after_the_block(ends_process: bool) -> None:
    """A library restores handlers. At the end of a process, a second signal does not replace its status."""
    taken: list[int] = []

    def take(number: int, frame: FrameType | None) -> None:
        taken.append(number)

    before = signal.getsignal(signal.SIGTERM)
    with handled(take, signal.SIGTERM, ends_process=ends_process):
        os.kill(os.getpid(), signal.SIGTERM)
    assert taken == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) == (signal.SIG_IGN if ends_process else before)


def test_nohup_stays() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with handled(lambda *_: None, signal.SIGHUP):
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
