"""File locks between threads."""

import threading
import time
from pathlib import Path

from megatape.utils.files.locks import locked
from tests.helpers.processes.load import scaled


def test_a_lock_that_is_removed(tmp_path: Path) -> None:
    """Each process locks the file that has the name, and the last process removes it."""
    path = tmp_path / "lock"
    holders = [0]
    most = [0]

    def work() -> None:
        for _ in range(20):
            with locked(path, remove=True):
                holders[0] += 1
                most[0] = max(most[0], holders[0])
                time.sleep(0.0005)
                holders[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=scaled(60))
    assert most == [1]
    assert not path.exists()
