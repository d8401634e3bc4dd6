"""Progress of a preparation, read from its folder on any machine."""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.prepare.command import prepare
from megatape.data.prepare.folder import PartialFolder
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.progress import UnitPass
from megatape.data.prepare.status import preparation_status
from megatape.data.prepare.unit_lease import DEFAULT_TIMEOUTS
from megatape.data.tokenizers.tokenizer import Tokenizer
from tests.helpers.data.preparation import UNIT_BYTES, prepare_until, write_lines
from tests.helpers.processes.command import Command


@pytest.fixture
def corpus(tmp_path: Path, tokenizer: Tokenizer) -> PreparationOptions:
    return PreparationOptions(replace(write_lines(tmp_path / "texts"), unit_bytes=UNIT_BYTES), 0.1, tokenizer, 0)


def set_times(folder: Path, *seconds_ago: float) -> None:
    """Set the times of the results in a folder, in order, to this many seconds ago."""
    now = time.time()
    paths = sorted(path for path in folder.iterdir() if path.is_dir())
    for path, ago in zip(paths, seconds_ago, strict=True):
        os.utime(path, (now - ago, now - ago))


def test_units_rate_and_time_left(corpus: PreparationOptions, tmp_path: Path, command: Command) -> None:
    """With one pass, the rate is that of the last ten minutes, or since the first unit if that is shorter."""
    corpus = replace(corpus, cleaning=Cleaning(drop_duplicates=False))
    prepare_until(corpus, tmp_path / "out", UnitPass.WRITE, 4)
    units = corpus.source.units()
    set_times(tmp_path / "out.partial" / "units", 100, 60, 40, 20)
    (only,) = preparation_status(tmp_path / "out").passes
    done, total = (sum(unit.num_bytes for unit in part) for part in (units[:4], units))
    assert (only.unit_pass, only.num_done, only.num_units, only.done_bytes, only.total_bytes) == (
        UnitPass.WRITE,
        4,
        len(units),
        done,
        total,
    )
    timed = sum(unit.num_bytes for unit in units[1:4])  # It is unknown when the first unit began.
    assert only.bytes_per_second == pytest.approx(timed / 100, rel=0.1)
    assert only.seconds_left == pytest.approx((total - done) / (timed / 100), rel=0.1)
    set_times(tmp_path / "out.partial" / "units", 5000, 4000, 40, 20)
    (only,) = preparation_status(tmp_path / "out").passes
    assert only.bytes_per_second == pytest.approx(sum(unit.num_bytes for unit in units[2:4]) / 600, rel=0.1)
    set_times(tmp_path / "out.partial" / "units", 5000, 4000, 3000, 2000)
    (only,) = preparation_status(tmp_path / "out").passes
    assert (only.bytes_per_second, only.seconds_left) == (0, None)
    status, printed, errors = command("data", "status", tmp_path / "out")
    assert status == 0 and f"write pass: 4 of {len(units)} units, " in printed, errors
    assert printed.endswith("no process is running: run the same `megatape prepare` command again to resume\n")
    assert "left at" not in printed


@pytest.mark.parametrize(("unit_pass", "number", "read", "written"), [(UnitPass.FIRST, 3, 3, 0), (UnitPass.WRITE, 2, None, 2)])
def test_status_of_two_passes(
    corpus: PreparationOptions, tmp_path: Path, unit_pass: UnitPass, number: int, read: int | None, written: int
) -> None:
    """A written unit was read as well, although the result of its first pass is gone."""
    prepare_until(corpus, tmp_path / "out", unit_pass, number)
    passes = preparation_status(tmp_path / "out").passes
    num_units = len(corpus.source.units())
    expected = [(UnitPass.FIRST, num_units if read is None else read), (UnitPass.WRITE, written)]
    assert [(each.unit_pass, each.num_done) for each in passes] == expected
    assert (passes[0].seconds_left == 0) == (read is None)


def test_status_names_holders_of_leases(corpus: PreparationOptions, tmp_path: Path, command: Command) -> None:
    """The status shows the process of each lease, its input and its last heartbeat."""
    prepare_until(corpus, tmp_path / "out", UnitPass.WRITE, 2)
    partial = PartialFolder(tmp_path / "out", DEFAULT_TIMEOUTS)
    with partial.leases.hold("00003"), partial.leases.hold("00001.compare"), partial.leases.hold("00000.near"):
        path = partial.leases.path_of("00003")
        os.utime(path, (time.time() - 75, time.time() - 75))
        near, compare, unit = preparation_status(tmp_path / "out").leases
        assert near.work == "deciding which near duplicates to drop"
        assert compare.work == "comparing documents, part 2" and compare.seconds_silent < 60
        assert unit.work == f"unit 3 ({corpus.source.units()[3]})" and unit.has_ended is False
        assert unit.holder.startswith(f"process {os.getpid()} on host ") and 74 < unit.seconds_silent < 100
        _, printed, _ = command("data", "status", tmp_path / "out")
        assert "last heartbeat 1 min" in printed and "no process is running" not in printed


def test_status_without_a_preparation(corpus: PreparationOptions, tmp_path: Path, command: Command) -> None:
    """A missing or complete preparation is an error of one line. A preparation just begun has no plan yet."""
    status, _, errors = command("data", "status", tmp_path / "out")
    assert status == 2 and f"{tmp_path}/out.partial: not found, so nothing is being prepared there" in errors
    PartialFolder(tmp_path / "out", DEFAULT_TIMEOUTS).create()
    status, printed, errors = command("data", "status", tmp_path / "out")
    assert status == 0 and "its plan is not stored yet" in printed, errors
    shutil.rmtree(tmp_path / "out.partial")
    prepare(corpus, tmp_path / "out")
    status, _, errors = command("data", "status", tmp_path / "out")
    assert status == 2 and f"{tmp_path}/out is complete: `megatape data report {tmp_path}/out` shows it" in errors
