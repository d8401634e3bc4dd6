"""Reading a preparation's progress from its folder on any machine."""

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.progress import UnitPass
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.unit_lease import DEFAULT_TIMEOUTS
from megatape.data.prepare.status import preparation_status
from megatape.data.sources.units import Unit
from tests.helpers.data.preparation import prepare_until
from tests.helpers.processes.command import Command


def set_times(folder: Path, *seconds_ago: float) -> None:
    """Set modification times for a folder's results, in order of their names."""
    now = time.time()
    paths = sorted(path for path in folder.iterdir() if path.is_dir())
    for path, seconds in zip(paths, seconds_ago, strict=True):
        os.utime(path, (now - seconds, now - seconds))


def bytes_of(units: Sequence[Unit]) -> int:
    return sum(unit.num_bytes for unit in units)


@pytest.fixture
def one_pass_corpus(corpus: PreparationOptions) -> PreparationOptions:
    """A corpus prepared in one pass, since its documents are not compared."""
    return replace(corpus, cleaning=Cleaning(drop_duplicates=False))


@pytest.fixture
def output(one_pass_corpus: PreparationOptions, tmp_path: Path) -> Path:
    """Return the output of a one-pass preparation stopping after four units."""
    prepare_until(one_pass_corpus, tmp_path / "out", UnitPass.WRITE, 4)
    return tmp_path / "out"


def test_progress_of_one_pass(one_pass_corpus: PreparationOptions, output: Path) -> None:
    units = one_pass_corpus.source.units()

    (progress,) = preparation_status(output).passes

    assert progress.unit_pass == UnitPass.WRITE
    assert progress.num_done == 4
    assert progress.num_units == len(units)
    assert progress.done_bytes == bytes_of(units[:4])
    assert progress.total_bytes == bytes_of(units)


def test_the_rate_is_measured_since_the_first_unit(one_pass_corpus: PreparationOptions, output: Path) -> None:
    """The first unit itself does not count, since its starting time is unknown."""
    set_times(output.with_name("out.partial") / "units", 100, 60, 40, 20)
    units = one_pass_corpus.source.units()
    rate = bytes_of(units[1:4]) / 100

    (progress,) = preparation_status(output).passes

    assert progress.bytes_per_second == pytest.approx(rate, rel=0.1)
    assert progress.seconds_left == pytest.approx(bytes_of(units[4:]) / rate, rel=0.1)


def test_the_rate_is_measured_over_ten_minutes_at_most(one_pass_corpus: PreparationOptions, output: Path) -> None:
    set_times(output.with_name("out.partial") / "units", 5000, 4000, 40, 20)
    units = one_pass_corpus.source.units()

    (progress,) = preparation_status(output).passes

    assert progress.bytes_per_second == pytest.approx(bytes_of(units[2:4]) / 600, rel=0.1)


def test_an_idle_preparation_has_no_rate(one_pass_corpus: PreparationOptions, output: Path, command: Command) -> None:
    set_times(output.with_name("out.partial") / "units", 5000, 4000, 3000, 2000)

    (progress,) = preparation_status(output).passes
    status, printed, errors = command("data", "status", output)

    assert progress.bytes_per_second == 0
    assert progress.seconds_left is None
    assert status == 0, errors
    assert f"write pass: 4 of {len(one_pass_corpus.source.units())} units, " in printed
    assert printed.endswith("no process is running: run the same `megatape prepare` command again to resume\n")
    assert "left at" not in printed


def test_status_of_the_first_of_two_passes(corpus: PreparationOptions, tmp_path: Path) -> None:
    prepare_until(corpus, tmp_path / "out", UnitPass.FIRST, 3)

    passes = preparation_status(tmp_path / "out").passes

    assert [(progress.unit_pass, progress.num_done) for progress in passes] == [(UnitPass.FIRST, 3), (UnitPass.WRITE, 0)]
    assert passes[0].seconds_left != 0


def test_a_written_unit_counts_in_both_passes(corpus: PreparationOptions, tmp_path: Path) -> None:
    """The result of its first pass has been removed."""
    prepare_until(corpus, tmp_path / "out", UnitPass.WRITE, 2)
    num_units = len(corpus.source.units())

    passes = preparation_status(tmp_path / "out").passes

    assert [(progress.unit_pass, progress.num_done) for progress in passes] == [
        (UnitPass.FIRST, num_units),
        (UnitPass.WRITE, 2),
    ]
    assert passes[0].seconds_left == 0


def test_status_names_holders_of_leases(corpus: PreparationOptions, tmp_path: Path, command: Command) -> None:
    """The status shows the process holding each lease, its input and its last heartbeat."""
    output = tmp_path / "out"
    prepare_until(corpus, output, UnitPass.WRITE, 2)
    leases = PartialFolder(output, DEFAULT_TIMEOUTS).leases
    with leases.hold("00003"), leases.hold("00001.compare"), leases.hold("00000.near"):
        heartbeat = time.time() - 75
        os.utime(leases.path_of("00003"), (heartbeat, heartbeat))

        near, compare, unit = preparation_status(output).leases
        _, printed, _ = command("data", "status", output)

    assert near.work == "deciding which near duplicates to drop"
    assert compare.work == "comparing documents, part 2"
    assert compare.seconds_silent < 60
    assert unit.work == f"unit 3 ({corpus.source.units()[3]})"
    assert unit.has_ended is False
    assert unit.holder.startswith(f"process {os.getpid()} on host ")
    assert 74 < unit.seconds_silent < 100
    assert "last heartbeat 1 min" in printed
    assert "no process is running" not in printed


def test_status_without_an_unfinished_preparation(corpus: PreparationOptions, tmp_path: Path, command: Command) -> None:
    """A missing or complete preparation is an error. One just starting has no plan yet."""
    output = tmp_path / "out"

    status, _, errors = command("data", "status", output)
    assert status == 2
    assert f"{output}.partial: not found, so nothing is being prepared there" in errors

    PartialFolder(output, DEFAULT_TIMEOUTS).create()
    status, printed, errors = command("data", "status", output)
    assert status == 0, errors
    assert "its plan is not stored yet" in printed

    shutil.rmtree(tmp_path / "out.partial")
    prepare(corpus, output)
    status, _, errors = command("data", "status", output)
    assert status == 2
    assert f"{output} is complete: `megatape data report {output}` shows it" in errors
