"""Health check of the containers."""

import errno
import os
import time
from pathlib import Path

import pytest

from megatape.tools.cluster.health import MAX_STEP_SECONDS, main
from megatape.utils.files.files import file_system_time


def test_health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ages are measured by the clock of the file system. The clock of this host is an hour ahead."""
    now = file_system_time(tmp_path)
    ahead = time.time() + 3600.0
    monkeypatch.setattr("time.time", lambda: ahead)
    monkeypatch.delenv("MEGATAPE_RUN", raising=False)
    assert main() == 0
    monkeypatch.setenv("MEGATAPE_RUN", str(tmp_path))
    assert main() == 1
    assert capsys.readouterr().out.endswith("metrics.jsonl: not written yet\n")
    log = tmp_path / "metrics.jsonl"
    log.touch()
    future = "s in the future: the clock of the file system was set back"
    for age, status, reason in (
        (0.0, 0, "healthy"),
        (MAX_STEP_SECONDS - 60, 0, "healthy"),
        (MAX_STEP_SECONDS + 1, 1, f"no step for {MAX_STEP_SECONDS + 1:.0f} s (limit: 600 s): read {tmp_path / 'events.jsonl'}"),
        (-(10.0**8), 1, future),
    ):
        os.utime(log, (now - age, now - age))
        assert main() == status, age
        assert capsys.readouterr().out.endswith(f"{reason}\n")
    assert list(tmp_path.iterdir()) == [log]


def test_a_file_system_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The check names the error in one line, as container engines show it. Asking for the time creates a file."""

    def full(path: Path, *arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    (tmp_path / "metrics.jsonl").touch()
    monkeypatch.setenv("MEGATAPE_RUN", str(tmp_path))
    monkeypatch.setattr(Path, "touch", full)
    assert main() == 1
    reason = capsys.readouterr().out
    assert reason.startswith(f"{tmp_path}: its file system cannot be used: [Errno 28] No space left on device: ")
    assert reason.count("\n") == 1
