"""Files that changed after their units were read: only these units are prepared again, from the current content."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.prepare.command import prepare
from megatape.data.prepare.folder import PartialFolder
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.progress import UnitPass
from megatape.data.prepare.unit_lease import DEFAULT_TIMEOUTS
from megatape.data.shards.entries import SPLITS
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from tests.helpers.data.data_directory import read_all
from tests.helpers.data.preparation import UNIT_BYTES, prepare_until, text_of, write_lines


@pytest.fixture
def corpus(tmp_path: Path, tokenizer: Tokenizer) -> PreparationOptions:
    return PreparationOptions(replace(write_lines(tmp_path / "texts"), unit_bytes=UNIT_BYTES), 0.1, tokenizer, 0)


def file(corpus: PreparationOptions, number: int) -> Path:
    return Path(corpus.source.inputs[0]) / f"{number:02}.jsonl"


def grow(path: Path) -> None:
    """Append text to a file, so that a fresh preparation would divide the files into other units."""
    lines = [json.dumps({"text": text_of(number)}) for number in (5, *range(7000, 7020))]
    path.write_text(path.read_text() + "\n".join(lines) + "\n")


def check_equal(corpus: PreparationOptions, output: Path) -> None:
    """Check that the folder has the documents of a fresh preparation of the current files."""
    prepare(corpus, output.with_name("fresh"))
    for split in SPLITS:
        assert np.array_equal(read_all(output, split), read_all(output.with_name("fresh"), split))


@pytest.mark.parametrize(("unit_pass", "number"), [(UnitPass.FIRST, 4), (UnitPass.WRITE, 0), (UnitPass.WRITE, 4)])
def test_redo_with_compared_documents(corpus: PreparationOptions, tmp_path: Path, unit_pass: UnitPass, number: int) -> None:
    """A file changes in the first pass, or after units were written whose documents are compared with the file's."""
    prepare_until(corpus, tmp_path / "out", unit_pass, number)
    changed = file(corpus, 1)
    grow(changed)
    with pytest.raises(UserError, match=rf"{changed}.*, add `redo` {changed} to prepare the changed files again"):
        prepare(corpus, tmp_path / "out")
    prepare(corpus, tmp_path / "out", redo=[changed.name])
    check_equal(corpus, tmp_path / "out")


def test_redo_prepares_only_units_of_the_file(
    corpus: PreparationOptions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without comparisons the other units are kept, even if the command is killed and run again, with or without the option."""
    corpus = replace(corpus, cleaning=Cleaning(drop_duplicates=False))
    prepare_until(corpus, tmp_path / "out", UnitPass.WRITE, 6)
    units = tmp_path / "out.partial" / "units"
    before = {path.name: path.stat().st_mtime_ns for path in units.iterdir()}
    assert len(before) == 6
    changed = file(corpus, 1)
    grow(changed)
    partial = PartialFolder(tmp_path / "out", DEFAULT_TIMEOUTS)
    plan = partial.plan()
    assert plan is not None
    read = {f"{number:05d}" for number, unit in enumerate(plan.units) if str(changed) in unit.inputs}
    with (
        partial.leases.hold("00006"),
        pytest.raises(UserError, match=r"`redo`: another process is still running \(.*00006.claim"),
    ):
        prepare(corpus, tmp_path / "out", redo=[str(changed)])
    assert {path.name: path.stat().st_mtime_ns for path in units.iterdir()} == before
    corrupted = file(corpus, 5)
    content = corrupted.read_bytes()
    corrupted.write_bytes(b"\x1f\x8b" + content)
    with pytest.raises(UserError, match=f"{corrupted}: it is compressed by gzip"):
        prepare(corpus, tmp_path / "out", redo=[str(changed)])
    assert f"{len(read)} of {len(plan.units)} units have read {changed} and are prepared again" in caplog.text
    after = {path.name: path.stat().st_mtime_ns for path in units.iterdir()}
    assert {name for name in before if after[name] == before[name]} == before.keys() - read
    corrupted.write_bytes(content)
    prepare(corpus, tmp_path / "out")
    check_equal(corpus, tmp_path / "out")


def test_redo_of_a_missing_file(corpus: PreparationOptions, tmp_path: Path) -> None:
    """The error names the missing file. Once restored, it is accepted with another modification time."""
    prepare_until(corpus, tmp_path / "out", UnitPass.WRITE, 0)
    lost = file(corpus, 2)
    content = lost.read_bytes()
    lost.unlink()
    with pytest.raises(UserError, match=rf"was begun with other inputs: {lost}, which cannot be found now\. Give the same"):
        prepare(corpus, tmp_path / "out")
    (lost.parent / "more.jsonl").write_bytes(content)
    lost.write_bytes(content)
    with pytest.raises(UserError, match=rf"was begun with other inputs, without {lost.parent}/more.jsonl"):
        prepare(corpus, tmp_path / "out")
    (lost.parent / "more.jsonl").unlink()
    prepare(corpus, tmp_path / "out", redo=[str(lost)])
    check_equal(corpus, tmp_path / "out")


def test_redo_refuses_names_of_no_input(corpus: PreparationOptions, tmp_path: Path) -> None:
    """A name that matches no input is refused, and nothing is removed."""
    prepare_until(corpus, tmp_path / "out", UnitPass.WRITE, 3)
    (tmp_path / "texts" / "deep").mkdir()
    before = sorted((tmp_path / "out.partial").rglob("*"))
    with pytest.raises(UserError, match=r"redo 0.jsonl: no input has this name"):
        prepare(corpus, tmp_path / "out", redo=["0.jsonl"])
    assert sorted((tmp_path / "out.partial").rglob("*")) == before


def test_redo_refuses_a_file_that_is_too_short_now(corpus: PreparationOptions, tmp_path: Path) -> None:
    """The file now ends before the start of its last units."""
    prepare_until(corpus, tmp_path / "out", UnitPass.WRITE, 0)
    changed = file(corpus, 1)
    changed.write_text(json.dumps({"text": "short"}) + "\n")
    with pytest.raises(UserError, match=rf"{changed} has only 18 bytes now: remove the unfinished folder to begin again"):
        prepare(corpus, tmp_path / "out", redo=[str(changed)])
