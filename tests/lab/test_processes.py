"""Child processes: their output, their failures, and their end."""

import sys
import time

import pytest

from megatape.lab.processes import child, ending, finish


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_output_includes_errors() -> None:
    with child(python("import sys; print('out'); print('error', file=sys.stderr)")) as process:
        output = finish(process)

    assert sorted(output.split()) == ["error", "out"]


def test_failure_has_the_status_and_the_last_words() -> None:
    failing = python("print('first'); raise SystemExit('last words')")

    with child(failing) as process, pytest.raises(ChildProcessError, match="exited with status 1: .*last words"):
        finish(process)


def test_ending_is_the_last_three_lines() -> None:
    assert ending("a\n\nb\nc\nd\n") == "b / c / d"


@pytest.mark.parametrize("own_group", [True, False])
def test_nothing_runs_after_the_block(own_group: bool) -> None:
    with child(python("import time; time.sleep(600)"), start_new_session=own_group) as process:
        assert process.poll() is None

    assert process.returncode is not None


def leaving_a_process(seconds: float) -> list[str]:
    """Return a command that ends at once and leaves a process, which prints `ended` after some seconds."""
    grandchild = f"import time; time.sleep({seconds}); print('ended', flush=True)"
    start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {grandchild!r}]); print('left', flush=True)"
    return python(start)


@pytest.mark.parametrize(
    ("seconds", "grace", "expected"),
    [
        pytest.param(600, 0.0, ["left"], id="killed"),
        pytest.param(0.5, 30.0, ["left", "ended"], id="ended within the time of grace"),
    ],
)
def test_processes_left_behind_end_with_the_block(seconds: float, grace: float, expected: list[str]) -> None:
    with child(leaving_a_process(seconds), grace=grace) as process:
        process.wait()

    assert process.stdout is not None
    assert process.stdout.read().split() == expected


def test_time_limit_kills_the_process() -> None:
    started = time.monotonic()

    with child(python("import time; time.sleep(600)"), limit=0.2) as process:
        status = process.wait()

    assert status < 0
    assert time.monotonic() - started < 30
