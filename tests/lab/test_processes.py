"""Child processes: their output, their failures, and their end."""

import sys
import time

import pytest

from megatape.lab.processes import child, ending, finish


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_output_and_failure() -> None:
    with child(python("import sys; print('out'); print('error', file=sys.stderr)")) as process:
        assert sorted(finish(process).split()) == ["error", "out"]
    failing = python("print('first'); raise SystemExit('last words')")
    with child(failing) as process, pytest.raises(ChildProcessError, match="exited with status 1: .*last words"):
        finish(process)
    assert ending("a\n\nb\nc\nd\n") == "b / c / d"


@pytest.mark.parametrize("own_group", [True, False])
def test_nothing_is_left_after_the_block(own_group: bool) -> None:
    with child(python("import time; time.sleep(600)"), start_new_session=own_group) as process:
        assert process.poll() is None
    assert process.returncode is not None


def test_the_group_ends_with_the_block() -> None:
    """Also a process that the command left behind; one that ends in the time of grace is not killed."""
    for seconds, grace in ((600, 0.0), (0.5, 30.0)):
        grandchild = f"import time; time.sleep({seconds}); print('ended', flush=True)"
        start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {grandchild!r}]); print('left', flush=True)"
        with child(python(start), grace=grace) as process:
            process.wait()
        assert process.stdout is not None
        assert process.stdout.read().split() == (["left", "ended"] if grace else ["left"])


def test_limit() -> None:
    started = time.monotonic()
    with child(python("import time; time.sleep(600)"), limit=0.2) as process:
        assert process.wait() < 0
    assert time.monotonic() - started < 30
