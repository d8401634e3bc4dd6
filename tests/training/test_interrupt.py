"""Requests to stop: a signal on one rank stops all ranks."""

import signal
from collections.abc import Iterator

import pytest

from megatape.training.interrupt import Interrupt


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restore SIGINT's handler."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_of_two(other_requests: float = 0.0) -> Interrupt:
    """Return the interrupt on one of two ranks, with the other one adding `other_requests` to each sum."""
    return Interrupt(lambda *numbers: [number + other_requests for number in numbers])


def test_a_signal_is_a_request_until_ranks_agree() -> None:
    interrupt = interrupt_of_two()
    interrupt.poll()
    assert not interrupt.is_agreed
    interrupt.request(signal.SIGTERM, None)
    assert interrupt.is_requested
    assert not interrupt.is_agreed
    interrupt.poll()
    assert interrupt.is_agreed
    assert not interrupt.ask_if_from_user()


def test_a_request_of_another_rank_stops_this_one() -> None:
    interrupt = interrupt_of_two(other_requests=1.0)
    interrupt.poll()
    assert interrupt.is_agreed
    assert not interrupt.is_requested


def test_a_users_second_signal_ends_the_process() -> None:
    interrupt = interrupt_of_two()
    interrupt.request(signal.SIGINT, None)
    assert interrupt.ask_if_from_user()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sums_of_a_step_are_an_agreement() -> None:
    interrupt = interrupt_of_two()
    interrupt.agree(0.0)
    assert not interrupt.is_agreed
    interrupt.agree(2.0)
    assert interrupt.is_agreed
