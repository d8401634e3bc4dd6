"""Open shards: when their files are closed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatape.data.shards.reading.shard_file import ShardFile
from tests.helpers.processes.load import scaled

# Python clears the modules that are still alive at exit, here one with a reference from outside of Python, and then its shard.
HELD_BY_A_MODULE = """
import ctypes, sys
from pathlib import Path
from megatape.data.shards.reading import shard_file
ctypes.pythonapi.Py_IncRef(ctypes.py_object(shard_file))
shard_file.held = shard_file.ShardFile(Path(sys.argv[1]))
"""


def test_a_shard_is_closed_when_nothing_refers_to_it(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"tokens")
    before = os.listdir("/proc/self/fd")
    file = ShardFile(path)
    assert file.read(2, 10) == b"kens"
    assert file in ShardFile.all
    assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    del file
    assert os.listdir("/proc/self/fd") == before


def test_a_missing_shard_leaves_nothing_behind(tmp_path: Path) -> None:
    num_open = len(ShardFile.all)
    with pytest.raises(FileNotFoundError):
        ShardFile(tmp_path / "missing")
    assert len(ShardFile.all) == num_open


def test_a_shard_that_is_open_at_exit_prints_nothing(tmp_path: Path) -> None:
    """Fails if the file is closed by a `__del__` that uses names of its module: they are None by then."""
    path = tmp_path / "shard"
    path.write_bytes(b"tokens")
    command = [sys.executable, "-c", HELD_BY_A_MODULE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=scaled(60))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
