"""A run of 20 steps, for tests of reports."""

from pathlib import Path

import pytest

from megatape.run_folder import RunFolder
from tests.helpers.runs.report_folders import make_run


@pytest.fixture
def run(data_directory: Path, tmp_path: Path) -> RunFolder:
    return make_run(tmp_path / "run", data_directory)
