"""Every document is counted, and a resumed preparation gives the same bytes as an undisturbed one."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import parse_rules
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.passes.unit_passes import UnitPasses
from megatape.data.prepare.progress import UnitPass
from megatape.data.prepare.shared_folder.unit_lease import UnitLease
from megatape.data.shards.index import load_index
from megatape.data.shards.ledger import check_ledger
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from tests.helpers.data.data_directory import hashes_of
from tests.helpers.data.preparation import (
    NUM_FILES,
    UNIT_BYTES,
    arguments,
    fail_at,
    prepare_until,
    store_tokenizer,
    write_corpus,
)
from tests.helpers.processes.command import Command


@pytest.mark.parametrize("unit_bytes", [UNIT_BYTES, 2**20])
def test_the_ledger_adds_up(corpus: PreparationOptions, tmp_path: Path, unit_bytes: int) -> None:
    """Every document read is written or counted as skipped, with one unit per file and with several."""
    corpus = replace(corpus, source=replace(corpus.source, unit_bytes=unit_bytes))

    index, counts = prepare(corpus, tmp_path / "out")

    assert counts is not None
    assert index.counts == {"empty documents": 2, "duplicates": NUM_FILES, "bad records": 4}
    num_written = sum(split.documents for split in index.splits.values())
    assert num_written + sum(index.counts.values()) == 30 * NUM_FILES
    assert [path.name for path in tmp_path.glob("*.partial")] == []


@pytest.mark.parametrize("unit_bytes", [UNIT_BYTES, 2**20])
def test_the_ledger_adds_up_without_comparisons(corpus: PreparationOptions, tmp_path: Path, unit_bytes: int) -> None:
    source = replace(corpus.source, unit_bytes=unit_bytes)
    corpus = replace(corpus, source=source, cleaning=Cleaning(drop_duplicates=False))

    index, _ = prepare(corpus, tmp_path / "out")

    assert index.counts == {"empty documents": 2, "bad records": 4}
    assert sum(split.documents for split in index.splits.values()) == 30 * NUM_FILES - 6


def test_resumes_after_the_finished_units(corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished units are not prepared again, and the result equals an undisturbed preparation's."""
    prepare(corpus, tmp_path / "whole")
    attempted: list[int] = []
    write = UnitPasses.write_pass

    def fail_once_at_five(self: UnitPasses, number: int, lease: UnitLease) -> None:
        attempted.append(number)
        if number == 5 and attempted.count(5) == 1:
            raise OSError("the disk is full")
        write(self, number, lease)

    monkeypatch.setattr(UnitPasses, "write_pass", fail_once_at_five)
    with pytest.raises(OSError, match="the disk is full"):
        prepare(corpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()

    prepare(corpus, tmp_path / "out")

    num_units = len(corpus.source.units())
    assert attempted == [0, 1, 2, 3, 4, 5, *range(5, num_units)]
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


def test_resuming_refuses_other_options(corpus: PreparationOptions, tmp_path: Path) -> None:
    prepare_until(corpus, tmp_path / "out", UnitPass.WRITE, 5)

    with pytest.raises(ValueError, match=r"out.partial was begun with other validation_share: 0.1, now 0.2. Give the same"):
        prepare(replace(corpus, validation_share=0.2), tmp_path / "out")


def test_another_unit_size_is_refused(
    corpus: PreparationOptions, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command decides the units. Resuming without the option keeps them."""
    corpus = replace(corpus, source=replace(corpus.source, unit_bytes=None))
    assert len(corpus.source.units()) == 1
    store_tokenizer(corpus, tmp_path)
    words = [*arguments(corpus, tmp_path), "--workers", "1"]
    assert command(*words, "--unit-bytes", "8000")[0] == 0
    (tmp_path / "out").rename(tmp_path / "whole")
    assert (tmp_path / "whole/train-00002-000000.tar").exists()
    with monkeypatch.context() as patch:
        fail_at(patch, 2)
        assert command(*words, "--unit-bytes", "8000")[0] == 2

    status, _, errors = command(*words, "--unit-bytes", "9000")
    assert status == 2
    assert "out.partial was begun with other unit_bytes: 8000, now 9000. Give the same inputs" in errors

    assert command(*words)[0] == 0
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


def test_a_unit_that_cannot_be_stored_ends_the_command(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units stored by another process are no error, but a failing disk is."""
    rename = Path.rename

    def fail(self: Path, target: Path) -> None:
        if target.name == "00003":
            raise OSError(errno.EIO, "Input/output error")
        rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(OSError, match="Input/output error"):
            prepare(corpus, tmp_path / "out")

    prepare(corpus, tmp_path / "out")


def test_paths_that_are_not_utf8_are_read(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The path is escaped wherever locations are stored: first passes over units, index, ledger and kept documents."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path / "texts") + b"\xff"))
    source = replace(write_corpus(folder), max_bad_fraction=0.1, unit_bytes=UNIT_BYTES)

    index, _ = prepare(PreparationOptions(source, 0.1, tokenizer, 0, keep_documents=True), tmp_path / "out")

    assert len(index.document_tables["train"]) > 1
    assert load_index(tmp_path / "out") == index
    assert list(index.ledger) == [f"{tmp_path}/texts\\udcff"]
    assert check_ledger(index).written > 100


def test_unit_already_finished_by_another_process(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A suspended process may find its unit finished and its first pass removed. That is no error."""
    write = UnitPasses.write_pass
    written_twice = []

    def write_twice(self: UnitPasses, number: int, lease: UnitLease) -> None:
        write(self, number, lease)
        written_twice.append(number)
        write(self, number, lease)

    with monkeypatch.context() as patch:
        patch.setattr(UnitPasses, "write_pass", write_twice)
        prepare(corpus, tmp_path / "out")
    prepare(corpus, tmp_path / "whole")

    assert written_twice == list(range(len(corpus.source.units())))
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


def test_dropped_documents_cause_heartbeats(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other machines must not take over a unit just because a rule is dropping most of its documents."""
    cleaning = Cleaning(parse_rules(["length:minimum=100000"]), drop_duplicates=False)
    heartbeats: list[str] = []
    monkeypatch.setattr(UnitLease, "heartbeat", lambda self: heartbeats.append(self.path.name))

    with pytest.raises(UserError, match="no documents found"):
        prepare(replace(corpus, cleaning=cleaning), tmp_path / "out")

    num_units = len(corpus.source.units())
    of_units = [name for name in heartbeats if name.startswith("0")]
    # One heartbeat per document. Four records are bad.
    assert len(of_units) == 30 * NUM_FILES - 4
    assert set(of_units) == {f"{number:05}.claim" for number in range(num_units)}
    # One heartbeat per assembled unit.
    assert heartbeats.count("finish.claim") == num_units
