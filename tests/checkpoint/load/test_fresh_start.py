"""Run directories in which a run may start from step 0, although some of their files are malformed."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from megatape.checkpoint.load.fresh_start import check_new, check_restart, records_no_save
from megatape.errors import UserError
from megatape.run_folder import RunFolder


def test_events_of_a_wrong_type_record_no_save(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.events.write_text('{"event": []}\n{"event": "started"}\n')
    assert records_no_save(folder)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "config.json", "latest"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    """A run starts in a folder with a pipe without a writer in place of a file."""
    folder = RunFolder(tmp_path)
    folder.metrics.write_text('{"step": 3}\n')
    folder.config.write_text("{}")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    for check in (check_new, check_restart):
        with suppress(UserError):
            check(folder)
    if name in ("metrics.jsonl", "latest"):
        with pytest.raises(UserError, match=f"{name}: a pipe or a device, not a file"):
            check_restart(folder)
