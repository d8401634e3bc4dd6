"""Stacks of threads, in a file and as text."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatape.reliability.watch.stacks import append_stacks, format_stacks


@pytest.fixture
def stuck() -> Iterator[threading.Thread]:
    """Thread that waits in `wait_for_ever`."""
    release = threading.Event()
    entered = threading.Event()

    def wait_for_ever() -> None:
        entered.set()
        release.wait()

    thread = threading.Thread(target=wait_for_ever, daemon=True)
    thread.start()
    assert entered.wait(10)
    yield thread
    release.set()
    thread.join()


def test_text_of_one_thread(stuck: threading.Thread) -> None:
    ended = threading.Thread(target=int)
    ended.start()
    ended.join()
    text = format_stacks([ended, stuck])
    assert "in wait_for_ever" in text
    assert "test_text_of_one_thread" not in text


def test_a_file_of_all_threads(tmp_path: Path, stuck: threading.Thread) -> None:
    path = tmp_path / "stacks" / "rank-1.txt"
    for number in (1, 2):
        append_stacks(path, f"hang {number}", timeout=10)
    text = path.read_text(encoding="utf-8")
    assert text.index(", hang 1\n") < text.index("in wait_for_ever") < text.index(", hang 2\n")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "a file" / "stacks.txt"
    path.parent.write_text("")
    append_stacks(path, "a hang", timeout=10)
    link = tmp_path / "link.txt"
    link.symlink_to(tmp_path / "target.txt")
    append_stacks(link, "a hang", timeout=10)
    assert not (tmp_path / "target.txt").exists()
