"""Input files changing, growing or turning out to be corrupted during a preparation."""

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.passes.decision_pass import DecisionPass
from megatape.data.prepare.passes.unit_passes import UnitPasses
from megatape.data.prepare.progress import UnitPass
from megatape.data.prepare.queue.work_queue import Step
from megatape.data.prepare.shared_folder.unit_lease import UnitLease
from megatape.errors import UserError
from tests.helpers.data.data_directory import hashes_of
from tests.helpers.data.preparation import NUM_FILES, arguments, fail_at, input_file, prepare_until, store_tokenizer, text_of
from tests.helpers.processes.command import Command


def test_resuming_refuses_a_file_that_has_grown(corpus: PreparationOptions, tmp_path: Path) -> None:
    """Once the original file is back, the preparation resumes."""
    prepare_until(corpus, tmp_path / "out", UnitPass.WRITE, 5)
    path = input_file(corpus, 0)
    original = path.rename(path.with_name(".original"))
    path.write_bytes(original.read_bytes() + b'{"text": "more"}\n')

    with pytest.raises(ValueError, match=r"out.partial was begun with other inputs: .*00.jsonl of version 4838-"):
        prepare(corpus, tmp_path / "out")

    original.replace(path)
    prepare(corpus, tmp_path / "out")


def edit_numbers(path: Path) -> None:
    path.write_text(path.read_text().replace(" 1", " 2"))


@pytest.mark.parametrize("change", [edit_numbers, Path.unlink])
def test_the_source_is_read_once(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    """The documents written are those decided about, even if their files change in between."""
    path = input_file(corpus, 0)
    later_steps = DecisionPass.later_steps
    path.write_text(path.read_text().replace(text_of(3), text_of(203)))
    prepare(corpus, tmp_path / "whole")

    def change_before_later_steps(self: DecisionPass) -> list[Step]:
        change(path)
        return later_steps(self)

    monkeypatch.setattr(DecisionPass, "later_steps", change_before_later_steps)
    prepare(corpus, tmp_path / "out")

    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


@pytest.mark.parametrize("drop_duplicates", [True, False])
def test_a_file_of_the_same_size_is_another_file(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drop_duplicates: bool
) -> None:
    """A rewritten file is refused after reading one of its units. A file not read yet may change."""
    corpus = replace(corpus, cleaning=Cleaning(drop_duplicates=drop_duplicates))
    first = input_file(corpus, 0)
    last = input_file(corpus, NUM_FILES - 1)
    pass_name = "write_pass"
    if drop_duplicates:
        pass_name = "first_pass"
    with monkeypatch.context() as patch:
        fail_at(patch, 3, pass_name)
        with pytest.raises(OSError, match="the disk is full"):
            prepare(corpus, tmp_path / "out")

    rewrite(last)
    before = rewrite(first)
    message = rf"begun with other inputs: {first} of version \d+-{before}, now \d+-{before + 1}\. Give"
    with pytest.raises(ValueError, match=message):
        prepare(corpus, tmp_path / "out")

    os.utime(first, ns=(before, before))
    prepare(corpus, tmp_path / "out")


def rewrite(path: Path) -> int:
    """Write the same content with another modification time. Return the time before, in nanoseconds."""
    before = path.stat().st_mtime_ns
    path.write_text(path.read_text())
    os.utime(path, ns=(before + 1, before + 1))
    return before


def test_a_file_that_changes_between_its_units(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All units of a file must be read from one version of it."""
    path = input_file(corpus, 0)
    write = UnitPasses.write_pass

    def change(self: UnitPasses, number: int, lease: UnitLease) -> None:
        write(self, number, lease)
        if number == 0:
            path.write_text(json.dumps({"text": "more"}) + "\n" + path.read_text())

    monkeypatch.setattr(UnitPasses, "write_pass", change)
    with pytest.raises(UserError, match=rf"an input has changed while it was prepared: {path} of version"):
        prepare(replace(corpus, cleaning=Cleaning(drop_duplicates=False)), tmp_path / "out")


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_corrupted_file_leaves_the_other_units_finished(
    corpus: PreparationOptions, tmp_path: Path, command: Command, workers: str
) -> None:
    """The command resumes after the file has been replaced, even by one of another size."""
    path = Path(corpus.source.inputs[0]) / "99.jsonl.gz"
    lines = [json.dumps({"text": text_of(number)}) + "\n" for number in range(5000, 5200)]
    content = gzip.compress("".join(lines).encode())
    path.write_bytes(content)
    prepare(corpus, tmp_path / "whole")
    store_tokenizer(corpus, tmp_path)
    words = [*arguments(corpus, tmp_path), "--workers", workers]

    path.write_bytes(content[:-20])
    status, _, errors = command(*words)
    assert status == 2
    assert f"error: {path}: corrupted or truncated gzip file" in errors
    if workers == "1":
        first_passes = list((tmp_path / "out.partial" / "verdicts").iterdir())
        assert len(first_passes) == len(corpus.source.units()) - 1

    path.write_bytes(content)
    assert command(*words)[0] == 0
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")
