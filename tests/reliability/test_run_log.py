"""Lines of ranks: content, stream, and readers that have gone. Events can be read again."""

import io
import logging
import sys
from pathlib import Path

import pytest

from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease
from megatape.reliability.run_log import RunLog, show_lines
from megatape.run_folder import RunFolder
from megatape.utils.json_lines import read_lines


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


@pytest.mark.parametrize(("variable", "coloured"), [(None, True), ("NO_COLOR", False), ("TERM", False)])
def test_colours_of_a_terminal(variable: str | None, coloured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses, warnings and errors; NO_COLOR and a terminal without colours are respected."""
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
    wanted = ["step 1/2  \x1b[1mloss 2.5000\x1b[0m  \x1b[1mvalidation loss 2.25\x1b[0m (unigram 3)\n", "\x1b[33mslow\x1b[0m\n"]
    if coloured:
        assert written == wanted
    else:
        assert written == plain


def test_a_reader_who_has_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    logging.getLogger("megatape.test").warning("slow")


@pytest.mark.parametrize("letter", ["x", "\U0001f600"])
def test_a_long_event_can_be_read_again(tmp_path: Path, letter: str) -> None:
    """An error or a command line can be long, but a line of more than a megabyte is never read."""
    folder = RunFolder(tmp_path)
    log = RunLog(folder, Lease(folder.lease), Topology(0, 1, 0))
    log.record("failed", letter * 2_000_000, environment={"command": letter * 2_000_000, "ranks": 2})
    log.record("finished", "short")
    first, second = [entry for _, entry in read_lines(folder.events)]
    for text in (first["detail"], first["environment"]["command"]):
        assert text.startswith(letter * 10_000)
        assert text.endswith("... (2,000,000 characters)")
    assert first["environment"]["ranks"] == 2
    assert second["detail"] == "short"


def test_secrets_of_urls_are_masked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Secrets are masked in events with their facts, and in lines with the traceback of an error."""
    folder = RunFolder(tmp_path)
    log = RunLog(folder, Lease(folder.lease), Topology(0, 1, 0))
    url = "https://me:pa55@example.org/data"
    log.record("started", f"from {url}", environment={"command": f"pretrain --set data.path={url}"})
    log.info(f"data: {url}")
    log.warning(f"cannot read {url}")
    try:
        raise OSError(url)
    except OSError:
        logging.getLogger("megatape.test").exception("failed")
    [entry] = [entry for _, entry in read_lines(folder.events)]
    assert entry["detail"] == "from https://me:***@example.org/data"
    assert entry["environment"]["command"] == "pretrain --set data.path=https://me:***@example.org/data"
    output, errors = capsys.readouterr()
    assert "data: https://me:***@" in output
    assert errors.count("me:***@") == 2
    assert "pa55" not in output + errors
