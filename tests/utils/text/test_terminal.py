"""Printed lines of ranks: content, stream, colors, and closed readers."""

import io
import logging
import os
import subprocess
import sys

import pytest

from megatape.utils.text.terminal import print_at_once, show_log


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
    show_log(verbose=True)
    logger.debug("raised here")
    show_log()
    assert capsys.readouterr() == ("", "raised here\n")


@pytest.mark.parametrize(("variable", "colored"), [(None, True), ("NO_COLOR", False), ("TERM", False)])
def test_colors_of_a_terminal(variable: str | None, colored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses, warnings and errors are colored, unless NO_COLOR is set or the terminal has no colors."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    if variable:
        monkeypatch.setenv(variable, "dumb")
    streams = {name: io.StringIO() for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(stream, "isatty", lambda: True)
        monkeypatch.setattr(sys, name, stream)
    logger = logging.getLogger("megatape.test")
    logger.info("step 1/2  loss 2.5000  validation loss 2.25 (unigram 3)")
    logger.warning("slow")
    written = [stream.getvalue() for stream in streams.values()]
    plain = ["step 1/2  loss 2.5000  validation loss 2.25 (unigram 3)\n", "slow\n"]
    expected = [
        "step 1/2  \x1b[1mloss 2.5000\x1b[0m  \x1b[1mvalidation loss 2.25\x1b[0m (unigram 3)\n",
        "\x1b[33mslow\x1b[0m\n",
    ]
    if colored:
        assert written == expected
    else:
        assert written == plain


def test_a_reader_who_has_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    logging.getLogger("megatape.test").warning("slow")


def test_text_without_buffers(capfd: pytest.CaptureFixture[str]) -> None:
    print_at_once("a rank hangs\n")
    assert capfd.readouterr().err == "a rank hangs\n"


PRINTING = """
import logging, sys
from megatape.utils.text.terminal import print_at_once, show_log

show_log()
logging.getLogger("megatape.test").warning("slow")
print_at_once("a rank hangs\\n" * int(sys.argv[1]) + "\\udcff")
print("ended")
"""


def test_a_closed_standard_error_ends_nothing() -> None:
    """A rank whose standard error is closed still has to end."""
    command = ["/bin/sh", "-c", 'exec "$0" "$@" 2>&-', sys.executable, "-c", PRINTING, "1"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True)
    assert ended.stdout == b"ended\n"


def test_a_long_text_does_not_wait_for_a_reader() -> None:
    """The text is longer than a pipe, from which nobody reads."""
    reader, writer = os.pipe()
    try:
        command = [sys.executable, "-c", PRINTING, "20000"]
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=writer, timeout=60, check=True)
        assert ended.stdout == b"ended\n"
        assert b"slow\na rank hangs\na rank hangs\n" in os.read(reader, 4096)
    finally:
        os.close(reader)
        os.close(writer)
