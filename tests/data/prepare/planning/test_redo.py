"""When files change after reading their units, only these units are prepared again, from the current content."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.progress import UnitPass
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.unit_lease import DEFAULT_TIMEOUTS
from megatape.data.shards.entries import SPLITS
from megatape.errors import UserError
from tests.helpers.data.data_directory import read_all
from tests.helpers.data.preparation import input_file, prepare_until, text_of


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


def grow(path: Path) -> None:
    """Append text to a file, making a fresh preparation split the files into other units."""
    numbers = [5, *range(7000, 7020)]
    lines = [json.dumps({"text": text_of(number)}) for number in numbers]
    path.write_text(path.read_text() + "\n".join(lines) + "\n")


def check_equals_fresh_preparation(corpus: PreparationOptions, output: Path) -> None:
    """Check that the folder has the same documents as when preparing the current files afresh."""
    fresh = output.with_name("fresh")
    prepare(corpus, fresh)
    for split in SPLITS:
        assert np.array_equal(read_all(output, split), read_all(fresh, split))


def times_of(folder: Path) -> dict[str, int]:
    """Return entries in a folder -> modification time."""
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("unit_pass", "number"),
    [
        pytest.param(UnitPass.FIRST, 4, id="in the first pass"),
        pytest.param(UnitPass.WRITE, 0, id="before any unit is written"),
        pytest.param(UnitPass.WRITE, 4, id="after units compared with the file were written"),
    ],
)
def test_redo_with_compared_documents(corpus: PreparationOptions, output: Path, unit_pass: UnitPass, number: int) -> None:
    prepare_until(corpus, output, unit_pass, number)
    changed = input_file(corpus, 1)
    grow(changed)

    with pytest.raises(UserError, match=rf"{changed}.*, add `redo` {changed} to prepare the changed files again"):
        prepare(corpus, output)
    prepare(corpus, output, redo=[changed.name])

    check_equals_fresh_preparation(corpus, output)


def test_redo_prepares_only_units_of_the_file(
    corpus: PreparationOptions, output: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without comparisons other units stay, even if the command fails and is run again without the option."""
    corpus = replace(corpus, cleaning=Cleaning(drop_duplicates=False))
    prepare_until(corpus, output, UnitPass.WRITE, 6)
    partial = PartialFolder(output, DEFAULT_TIMEOUTS)
    units = partial.path / "units"
    before = times_of(units)
    assert len(before) == 6
    changed = input_file(corpus, 1)
    grow(changed)
    plan = partial.plan()
    assert plan is not None
    affected = {f"{number:05d}" for number, unit in enumerate(plan.units) if str(changed) in unit.inputs}

    # While another process is running, the option is refused and removes nothing.
    running = pytest.raises(UserError, match=r"^redo: another process is still running \(.*00006.claim")
    with partial.leases.hold("00006"), running:
        prepare(corpus, output, redo=[str(changed)])
    assert times_of(units) == before

    # A corrupted file stops the command after it has removed the affected units.
    corrupted = input_file(corpus, 5)
    content = corrupted.read_bytes()
    corrupted.write_bytes(b"\x1f\x8b" + content)
    with pytest.raises(UserError, match=f"{corrupted}: it is compressed by gzip"):
        prepare(corpus, output, redo=[str(changed)])
    assert f"{len(affected)} of {len(plan.units)} units have read {changed} and are prepared again" in caplog.text
    after = times_of(units)
    assert {name for name in before if after[name] == before[name]} == before.keys() - affected

    # Once the file is restored, the same command without the option finishes.
    corrupted.write_bytes(content)
    prepare(corpus, output)
    check_equals_fresh_preparation(corpus, output)


def test_redo_of_a_missing_file(corpus: PreparationOptions, output: Path) -> None:
    """The error names the missing file. Once restored, it is accepted with another modification time."""
    prepare_until(corpus, output, UnitPass.WRITE, 0)
    missing = input_file(corpus, 2)
    added = missing.with_name("more.jsonl")
    content = missing.read_bytes()

    missing.unlink()
    with pytest.raises(UserError, match=rf"was begun with other inputs: {missing}, which cannot be found now\. Give the same"):
        prepare(corpus, output)

    added.write_bytes(content)
    missing.write_bytes(content)
    with pytest.raises(UserError, match=rf"was begun with other inputs, without {added}"):
        prepare(corpus, output)

    added.unlink()
    prepare(corpus, output, redo=[str(missing)])
    check_equals_fresh_preparation(corpus, output)


def test_redo_refuses_a_name_that_matches_no_input(corpus: PreparationOptions, tmp_path: Path, output: Path) -> None:
    prepare_until(corpus, output, UnitPass.WRITE, 3)
    (tmp_path / "texts" / "deep").mkdir()
    partial = tmp_path / "out.partial"
    before = sorted(partial.rglob("*"))

    with pytest.raises(UserError, match=r"redo 0.jsonl: no input has this name"):
        prepare(corpus, output, redo=["0.jsonl"])

    assert sorted(partial.rglob("*")) == before


def test_redo_refuses_a_file_that_is_too_short_now(corpus: PreparationOptions, output: Path) -> None:
    """The file now ends before the start of its last units."""
    prepare_until(corpus, output, UnitPass.WRITE, 0)
    changed = input_file(corpus, 1)
    changed.write_text(json.dumps({"text": "short"}) + "\n")

    with pytest.raises(UserError, match=rf"{changed} has only 18 bytes now: remove the unfinished folder to begin again"):
        prepare(corpus, output, redo=[str(changed)])
