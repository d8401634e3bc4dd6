"""A preparation by several processes, killed and continued: the same bytes as by one process that nothing disturbed."""

import errno
import gzip
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import parse_rules
from megatape.data.prepare.command import prepare
from megatape.data.prepare.decision_pass import DecisionPass
from megatape.data.prepare.folder import PartialFolder
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.unit_lease import UnitLease
from megatape.data.prepare.unit_passes import UnitPasses
from megatape.data.shards.index import load_index
from megatape.data.shards.ledger import check_ledger
from megatape.data.sources.source import Source
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from tests.helpers.data.data_directory import hashes_of
from tests.helpers.data.preparation import DRIVER, NUM_FILES, UNIT_BYTES, text_of, write_lines
from tests.helpers.processes.command import Command
from tests.helpers.processes.load import scaled

RULES = ["length:minimum=20", "near_duplicates"]


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Six files of lines, some skipped for a reason, most of them two units."""
    return replace(write_lines(tmp_path / "texts"), unit_bytes=UNIT_BYTES)


@pytest.fixture
def corpus(source: Source, tokenizer: Tokenizer) -> PreparationOptions:
    return PreparationOptions(source, 0.1, tokenizer, 0)


@pytest.mark.parametrize("unit_bytes", [UNIT_BYTES, 2**20])
def test_the_ledger_adds_up(
    corpus: PreparationOptions, tmp_path: Path, unit_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents read are those written and those skipped, to the document, with one unit and with many."""
    corpus = replace(corpus, source=replace(corpus.source, unit_bytes=unit_bytes))
    index, counts = prepare(corpus, tmp_path / "out")
    skipped = {"empty documents": 2, "duplicates": NUM_FILES, "bad records": 4}
    assert counts is not None and index.counts == skipped
    assert sum(split.documents for split in index.splits.values()) + sum(skipped.values()) == 30 * NUM_FILES
    assert [path.name for path in tmp_path.glob("*.partial")] == []
    kept, _ = prepare(replace(corpus, cleaning=Cleaning(drop_duplicates=False)), tmp_path / "kept")
    assert kept.counts == {"empty documents": 2, "bad records": 4}
    assert sum(split.documents for split in kept.splits.values()) == 30 * NUM_FILES - 6


def test_resumes_after_the_finished_units(corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished units are kept and not prepared again; other options are refused; the result is that of an undisturbed run."""
    prepare(corpus, tmp_path / "whole")
    prepared: list[int] = []
    write = UnitPasses.write_pass

    def fail_at_five(self: UnitPasses, number: int, lease: UnitLease) -> None:
        prepared.append(number)
        if number == 5 and prepared.count(5) == 1:
            raise OSError("the disk is full")
        write(self, number, lease)

    monkeypatch.setattr(UnitPasses, "write_pass", fail_at_five)
    with pytest.raises(OSError, match="the disk is full"):
        prepare(corpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match=r"out.partial was begun with other validation_share: 0.1, now 0.2. Give the same"):
        prepare(replace(corpus, validation_share=0.2), tmp_path / "out")
    first = Path(corpus.source.inputs[0]) / "00.jsonl"
    longer = first.read_bytes() + b'{"text": "more"}\n'
    first.rename(first.parent / ".kept")
    first.write_bytes(longer)
    with pytest.raises(ValueError, match=r"out.partial was begun with other inputs: .*00.jsonl of version 4838-"):
        prepare(corpus, tmp_path / "out")
    (first.parent / ".kept").replace(first)
    prepare(corpus, tmp_path / "out")
    assert prepared[:6] == [0, 1, 2, 3, 4, 5] and prepared[6:] == list(range(5, prepared[-1] + 1))
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


def test_another_unit_size_is_refused(
    corpus: PreparationOptions, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units are those of the first command: another size is refused, and another number of workers makes no difference."""
    corpus = replace(corpus, source=replace(corpus.source, unit_bytes=None))
    assert len(corpus.source.units()) == 1
    store_tokenizer(corpus, tmp_path)
    words = [*arguments(corpus, tmp_path), "--workers", "1"]
    assert command(*words, "--unit-bytes", "8000")[0] == 0
    (tmp_path / "out").rename(tmp_path / "whole")
    assert (tmp_path / "whole/train-00002-000000.tar").exists()
    write = UnitPasses.write_pass

    def fail(self: UnitPasses, number: int, lease: UnitLease) -> None:
        if number == 2:
            raise OSError("the disk is full")
        write(self, number, lease)

    with monkeypatch.context() as patch:
        patch.setattr(UnitPasses, "write_pass", fail)
        assert command(*words, "--unit-bytes", "8000")[0] == 2
    status, _, errors = command(*words, "--unit-bytes", "9000")
    assert status == 2 and "out.partial was begun with other unit_bytes: 8000, now 9000. Give the same inputs" in errors
    assert command(*words)[0] == 0
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


def test_a_unit_that_cannot_be_kept_ends_the_command(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another process has written before is no error, a disk that fails is."""
    rename = Path.rename

    def fail(self: Path, to: Path) -> None:
        if to.name == "00003":
            raise OSError(errno.EIO, "Input/output error")
        rename(self, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(OSError, match="Input/output error"):
            prepare(corpus, tmp_path / "out")
    prepare(corpus, tmp_path / "out")


@pytest.mark.parametrize("step", ["rename a shard", "write the index", "remove the units", "rename the result"])
def test_killed_assembly_is_resumed(
    corpus: PreparationOptions, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of the end can be the last one."""
    prepare(corpus, tmp_path / "whole")
    with monkeypatch.context() as patch:

        def stop(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        rename = Path.rename
        patch.setattr(PartialFolder, "remove", stop)  # a killed process removes nothing
        if step == "rename a shard":
            patch.setattr(
                Path, "rename", lambda self, to: stop() if "final" in to.parts and "00003" in to.name else rename(self, to)
            )
        elif step == "write the index":
            patch.setattr("megatape.data.prepare.assembly.build_index", stop)
        elif step == "remove the units":
            patch.setattr(
                "megatape.data.prepare.folder.shutil.rmtree", lambda path, **_: stop() if path.name == "units" else None
            )
        else:
            patch.setattr(Path, "rename", lambda self, to: stop() if self.name == "final" else rename(self, to))
        with pytest.raises(KeyboardInterrupt):
            prepare(corpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    prepare(corpus, tmp_path / "out")
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


def test_paths_that_are_not_utf8_are_read(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The path is escaped wherever places are stored: first passes over units, index, ledger and kept documents."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path / "texts") + b"\xff"))
    source = replace(write_lines(folder), max_bad_fraction=0.1, unit_bytes=UNIT_BYTES)
    index, _ = prepare(PreparationOptions(source, 0.1, tokenizer, 0, keep_documents=True), tmp_path / "out")
    assert len(index.document_tables["train"]) > 1 and load_index(tmp_path / "out") == index
    (name,) = index.ledger
    assert name == f"{tmp_path}/texts\\udcff" and check_ledger(index).written > 100


@pytest.mark.parametrize("change", [lambda path: path.write_text(path.read_text().replace(" 1", " 2")), Path.unlink])
def test_the_source_is_read_once(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    """Decisions are for the documents that were read, and those are written, whatever happens to their files meanwhile."""
    path = Path(corpus.source.inputs[0]) / "00.jsonl"
    compare = DecisionPass.compare
    path.write_text(path.read_text().replace(text_of(3), text_of(203)))
    prepare(corpus, tmp_path / "whole")

    def compare_and_change(self: DecisionPass, number: int, lease: UnitLease) -> None:
        compare(self, number, lease)
        change(path)

    monkeypatch.setattr(DecisionPass, "compare", compare_and_change)
    prepare(corpus, tmp_path / "out")
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


def test_unit_already_finished_by_another_process(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was suspended, and finds its unit finished and its first pass gone: no error."""
    write = UnitPasses.write_pass
    overtaken = []

    def overtake(self: UnitPasses, number: int, lease: UnitLease) -> None:
        write(self, number, lease)
        overtaken.append(number)
        write(self, number, lease)

    monkeypatch.setattr(UnitPasses, "write_pass", overtake)
    prepare(corpus, tmp_path / "out")
    monkeypatch.undo()
    prepare(corpus, tmp_path / "whole")
    assert overtaken == [*range(len(corpus.source.units()))]
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


@pytest.mark.parametrize("drop_duplicates", [True, False])
def test_a_file_of_the_same_size_is_another_file(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drop_duplicates: bool
) -> None:
    """Units that are finished, or were read once, do not fit a file that was changed since; others take it as it is."""
    corpus = replace(corpus, cleaning=Cleaning(drop_duplicates=drop_duplicates))
    name = "first_pass" if drop_duplicates else "write_pass"
    run = getattr(UnitPasses, name)
    first, last = (Path(corpus.source.inputs[0]) / f"{number:02}.jsonl" for number in (0, NUM_FILES - 1))

    def fail(self: UnitPasses, number: int, lease: UnitLease) -> None:
        if number == 3:
            raise OSError("the disk is full")
        run(self, number, lease)

    def change(path: Path) -> tuple[str, int]:
        before = path.stat().st_mtime_ns
        path.write_text(path.read_text())
        os.utime(path, ns=(before + 1, before + 1))
        return str(path), before

    with monkeypatch.context() as patch:
        patch.setattr(UnitPasses, name, fail)
        with pytest.raises(OSError, match="the disk is full"):
            prepare(corpus, tmp_path / "out")
    change(last)
    path, before = change(first)
    with pytest.raises(
        ValueError, match=rf"begun with other inputs: {path} of version \d+-{before}, now \d+-{before + 1}\. Give"
    ):
        prepare(corpus, tmp_path / "out")
    os.utime(first, ns=(before, before))
    prepare(corpus, tmp_path / "out")


def test_a_file_that_changes_between_its_units(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pass over a file in several units: they are of one state of the file."""
    path = Path(corpus.source.inputs[0]) / "00.jsonl"
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
    """The command goes on when the file was replaced, though the new one has another size."""
    path = Path(corpus.source.inputs[0]) / "99.jsonl.gz"
    good = gzip.compress("".join(json.dumps({"text": text_of(number)}) + "\n" for number in range(5000, 5200)).encode())
    path.write_bytes(good)
    prepare(corpus, tmp_path / "whole")
    path.write_bytes(good[:-20])
    store_tokenizer(corpus, tmp_path)
    words = [*arguments(corpus, tmp_path), "--workers", workers]
    status, _, errors = command(*words)
    assert status == 2 and f"error: {path}: corrupted or truncated gzip file" in errors
    hashed = len(list((tmp_path / "out.partial" / "verdicts").iterdir()))
    assert hashed == len(corpus.source.units()) - 1 or workers == "2"
    path.write_bytes(good)
    assert command(*words)[0] == 0
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


def store_tokenizer(corpus: PreparationOptions, folder: Path) -> None:
    assert corpus.tokenizer is not None
    (folder / "tokenizer.model").write_bytes(corpus.tokenizer.files["tokenizer.model"])


def arguments(corpus: PreparationOptions, folder: Path) -> list[str]:
    """Of the command that prepares `corpus` as folder/out."""
    source = ["--source", "jsonl", "--input", *corpus.source.inputs, "--output", str(folder / "out")]
    options = ["--tokenizer", str(folder / "tokenizer.model"), "--validation-share", "0.1"]
    if corpus.source.unit_bytes is not None:
        options += ["--unit-bytes", str(corpus.source.unit_bytes)]
    return ["prepare", "corpus", *source, *options]


@pytest.mark.slow
@pytest.mark.parametrize("keep_documents", [False, True])
def test_killed_at_any_moment(corpus: PreparationOptions, tmp_path: Path, keep_documents: bool) -> None:
    """Up to twenty times the command begins, or goes on, and is killed."""
    cleaning = Cleaning(parse_rules(RULES))
    prepare(replace(corpus, cleaning=cleaning, keep_documents=keep_documents), tmp_path / "whole")
    store_tokenizer(corpus, tmp_path)
    (tmp_path / "driver.py").write_text(DRIVER)
    seed = str(random.randrange(2**32))
    words = [*arguments(corpus, tmp_path), *(f"--rule={rule}" for rule in RULES), "--workers", "1"]
    words += ["--keep-documents"] if keep_documents else []
    run = subprocess.run(
        [sys.executable, tmp_path / "driver.py", seed, "20", *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, f"seed {seed}: {run.stderr}"
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")
    assert [path.name for path in tmp_path.glob("*.partial")] == []


@pytest.mark.slow
def test_a_killed_command_leaves_no_workers(corpus: PreparationOptions, tmp_path: Path) -> None:
    """Its workers end, and two further commands, at the same time, finish what it began."""
    prepare(replace(corpus, cleaning=Cleaning(parse_rules(RULES))), tmp_path / "whole")
    store_tokenizer(corpus, tmp_path)
    (tmp_path / "driver.py").write_text(DRIVER.replace("    seed", "    batches.read_unit = slowly\n    seed"))
    words = [*arguments(corpus, tmp_path), *(f"--rule={rule}" for rule in RULES)]
    command = [sys.executable, str(tmp_path / "driver.py"), "0", "0", *words, "--workers", "2"]
    first = subprocess.Popen(command, stderr=subprocess.PIPE)
    wait_for(lambda: any((tmp_path / "out.partial").glob("0*.claim")))
    workers = psutil.Process(first.pid).children(recursive=True)
    first.kill()
    first.communicate()
    wait_for(lambda: not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers))
    others = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    errors = [other.communicate(timeout=scaled(120))[1].decode() for other in others]
    # One may start when all is done.
    late = [other for other, error in zip(others, errors, strict=True) if "out exists: remove it" in error]
    assert len(late) < 2 and all(other.returncode == 0 for other in others if other not in late), errors
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


SUICIDE = """
import os, signal, sys
from megatape.data.prepare.unit_passes import UnitPasses
from megatape.commands.cli.main import main

marks, deaths, *words = sys.argv[1:]
write = UnitPasses.write_pass

def die(self, number, *arguments, **rest):
    if number == 3 and len(os.listdir(marks)) < int(deaths):
        open(os.path.join(marks, str(os.getpid())), "x")
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, number, *arguments, **rest)

if __name__ == "__main__":
    sys.exit(main(words))
UnitPasses.write_pass = die  # of the workers, which import this file
"""


FULL_DISK = """
import errno, multiprocessing, os

def full(descriptor):
    raise OSError(errno.ENOSPC, "No space left on device")

if multiprocessing.parent_process() is not None:
    os.fsync = full
"""


@pytest.mark.slow
def test_a_full_disk_of_a_worker(corpus: PreparationOptions, tmp_path: Path) -> None:
    """An error sent by a worker names the folder, as does an error of the command's own process."""
    store_tokenizer(corpus, tmp_path)
    (tmp_path / "full_disk.py").write_text(FULL_DISK)
    words = [*arguments(corpus, tmp_path), "--workers", "2"]
    words += ["--import", str(tmp_path / "full_disk.py")]
    run = subprocess.run(
        [sys.executable, "-m", "megatape", *words], capture_output=True, text=True, timeout=scaled(120), check=False
    )
    assert run.returncode == 2 and f"No space left on device: '{tmp_path}/out.partial'" in run.stderr, run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("deaths", [2, 1000])
def test_a_killed_worker_is_replaced(corpus: PreparationOptions, tmp_path: Path, deaths: int) -> None:
    """Another one takes over its unit, which is named, and the result is the same. A unit that kills all ends the command."""
    prepare(corpus, tmp_path / "whole")
    store_tokenizer(corpus, tmp_path)
    (tmp_path / "driver.py").write_text(SUICIDE)
    marks = tmp_path / "marks"
    marks.mkdir()
    words = [*arguments(corpus, tmp_path), "--workers", "2"]
    command = [sys.executable, str(tmp_path / "driver.py"), str(marks), str(deaths), *words]
    run = subprocess.run(command, capture_output=True, text=True, timeout=scaled(120), check=False)
    for pid in [mark.name for mark in sorted(marks.iterdir(), key=lambda mark: mark.stat().st_mtime_ns)][:3]:
        # The unit is named unless the other worker has taken it over before.
        line = rf"a worker \(process {pid}\) was killed by SIGKILL( in .*)?, possibly out of memory: another one takes over"
        assert len(re.findall(line, run.stderr)) == 1, run.stderr
    if deaths == 1000:
        assert run.returncode == 2 and "the last of 4 without a finished unit in between: try fewer" in run.stderr
        assert f"was killed by SIGKILL in {corpus.source.units()[3]}, possibly out of memory" in run.stderr
        assert any((tmp_path / "out.partial/units").iterdir())
        command[3] = "0"
        run = subprocess.run(command, capture_output=True, text=True, timeout=scaled(120), check=False)  # as the message says
    assert run.returncode == 0, run.stderr
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


def test_heartbeats_of_documents_that_are_dropped(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beats of all but bad records: other machines must not take over a unit of which a filter keeps little."""
    cleaning = Cleaning(parse_rules(["length:minimum=100000"]), drop_duplicates=False)
    beats: list[str] = []
    monkeypatch.setattr(UnitLease, "heartbeat", lambda self: beats.append(self.path.name))
    with pytest.raises(UserError, match="no documents found"):
        prepare(replace(corpus, cleaning=cleaning), tmp_path / "out")
    units = [name for name in beats if name.startswith("0")]
    assert len(units) == 30 * NUM_FILES - 4 and set(units) == {f"{k:05}.claim" for k in range(len(corpus.source.units()))}
    assert beats.count("finish.claim") == len(set(units))  # and while they are put together


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
