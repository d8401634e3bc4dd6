"""Logged events can be read again, and contain no secrets."""

import logging
from pathlib import Path

import pytest

from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease
from megatape.reliability.run_log import RunLog
from megatape.run_folder import RunFolder
from megatape.utils.files.json_lines import read_lines


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


def test_warnings_say_what_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder in the place of the events can neither be read nor written."""
    folder = RunFolder(tmp_path)
    log = RunLog(folder, Lease(folder.lease), Topology(0, 1, 0))
    folder.events.mkdir()
    log.read_earlier_events()
    warning = capsys.readouterr().err
    assert warning.startswith("warning: earlier events could not be read: ")
    assert warning.endswith("; training continues\n")

    writing = RunLog(folder, Lease(folder.lease), Topology(0, 1, 0))
    writing.record("started")
    assert capsys.readouterr().err.startswith("warning: events could not be written: ")
