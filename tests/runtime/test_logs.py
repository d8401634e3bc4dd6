"""Lines of ranks: what is shown, where, and that a reader who has gone ends nothing."""

import logging
import sys

import pytest

from megatape.runtime.logs import show_lines


@pytest.mark.parametrize(
    ("rank", "output", "errors"), [("0", "a step\n", "slow\nfailed\n"), ("3", "", "rank 3: slow\nfailed\n")]
)
def test_lines_of_ranks(
    rank: str, output: str, errors: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", rank)
    logger = logging.getLogger("megatape.test")
    logger.info("a step")
    logger.warning("slow")
    logger.error("failed")
    logger.debug("raised here")
    assert capsys.readouterr() == (output, errors)
    show_lines(verbose=True)
    logger.debug("raised here")
    show_lines()
    assert capsys.readouterr() == ("", "raised here\n")


def test_a_reader_who_has_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, text: str) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    logging.getLogger("megatape.test").warning("slow")
