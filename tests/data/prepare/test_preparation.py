"""Preparations that are killed, resumed or shared by several processes give the same bytes as an undisturbed one."""

import errno
import gzip
import json
import os
import random
import re
import subprocess
import sys
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
from megatape.data.prepare.progress import UnitPass
from megatape.data.prepare.unit_lease import UnitLease
from megatape.data.prepare.unit_passes import UnitPasses
from megatape.data.shards.index import load_index
from megatape.data.shards.ledger import check_ledger
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from tests.helpers.data.data_directory import hashes_of
from tests.helpers.data.preparation import DRIVER, NUM_FILES, UNIT_BYTES, prepare_until, text_of, write_lines
from tests.helpers.processes.command import Command
from tests.helpers.processes.load import scaled
from tests.helpers.processes.waiting import wait_until

RULES = ["length:minimum=20", "near_duplicates"]


def input_file(corpus: PreparationOptions, number: int) -> Path:
    return Path(corpus.source.inputs[0]) / f"{number:02}.jsonl"


def fail_at(monkeypatch: pytest.MonkeyPatch, number: int, pass_name: str = "write_pass") -> None:
    """Let a pass fail at the unit with this number."""
    run_pass = getattr(UnitPasses, pass_name)

    def fail(self: UnitPasses, unit: int, lease: UnitLease) -> None:
        if unit == number:
            raise OSError("the disk is full")
        run_pass(self, unit, lease)

    monkeypatch.setattr(UnitPasses, pass_name, fail)


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
    """Finished units are not prepared again, and the result equals that of an undisturbed preparation."""
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


def kill(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def kill_assembly_at(patch: pytest.MonkeyPatch, step: str) -> None:
    """Interrupt the assembly at one of its steps. As in a killed process, nothing is cleaned up."""
    rename = Path.rename

    def rename_shards_until_killed(self: Path, target: Path) -> None:
        if "final" in target.parts and "00003" in target.name:
            kill()
        rename(self, target)

    def rename_all_but_the_result(self: Path, target: Path) -> None:
        if self.name == "final":
            kill()
        rename(self, target)

    def keep_units(path: Path, **_: object) -> None:
        if path.name == "units":
            kill()

    patch.setattr(PartialFolder, "remove", kill)
    if step == "rename a shard":
        patch.setattr(Path, "rename", rename_shards_until_killed)
    elif step == "write the index":
        patch.setattr("megatape.data.prepare.assembly.build_index", kill)
    elif step == "remove the units":
        patch.setattr("megatape.data.prepare.folder.shutil.rmtree", keep_units)
    else:
        patch.setattr(Path, "rename", rename_all_but_the_result)


@pytest.mark.parametrize("step", ["rename a shard", "write the index", "remove the units", "rename the result"])
def test_killed_assembly_is_resumed(
    corpus: PreparationOptions, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(corpus, tmp_path / "whole")
    with monkeypatch.context() as patch:
        kill_assembly_at(patch, step)
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

    assert len(index.document_tables["train"]) > 1
    assert load_index(tmp_path / "out") == index
    assert list(index.ledger) == [f"{tmp_path}/texts\\udcff"]
    assert check_ledger(index).written > 100


def edit_numbers(path: Path) -> None:
    path.write_text(path.read_text().replace(" 1", " 2"))


@pytest.mark.parametrize("change", [edit_numbers, Path.unlink])
def test_the_source_is_read_once(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    """The documents written are those that decisions were made about, even if their files change in between."""
    path = input_file(corpus, 0)
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


@pytest.mark.parametrize("drop_duplicates", [True, False])
def test_a_file_of_the_same_size_is_another_file(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drop_duplicates: bool
) -> None:
    """A rewritten file is refused if a unit of it has been read. A file that no unit has read may change."""
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


def store_tokenizer(corpus: PreparationOptions, folder: Path) -> None:
    assert corpus.tokenizer is not None
    (folder / "tokenizer.model").write_bytes(corpus.tokenizer.files["tokenizer.model"])


def arguments(corpus: PreparationOptions, folder: Path) -> list[str]:
    """Return the words of the command that prepares `corpus` as folder/out."""
    words = ["prepare", "corpus", "--source", "jsonl", "--input", *corpus.source.inputs, "--output", str(folder / "out")]
    words += ["--tokenizer", str(folder / "tokenizer.model"), "--validation-share", "0.1"]
    if corpus.source.unit_bytes is not None:
        words += ["--unit-bytes", str(corpus.source.unit_bytes)]
    return words


@pytest.mark.slow
@pytest.mark.parametrize("keep_documents", [False, True])
def test_killed_at_any_moment(corpus: PreparationOptions, tmp_path: Path, keep_documents: bool) -> None:
    """The command is killed up to twenty times, and resumed each time."""
    cleaning = Cleaning(parse_rules(RULES))
    prepare(replace(corpus, cleaning=cleaning, keep_documents=keep_documents), tmp_path / "whole")
    store_tokenizer(corpus, tmp_path)
    (tmp_path / "driver.py").write_text(DRIVER)
    seed = str(random.randrange(2**32))
    words = [*arguments(corpus, tmp_path), *(f"--rule={rule}" for rule in RULES), "--workers", "1"]
    if keep_documents:
        words.append("--keep-documents")

    run = subprocess.run(
        [sys.executable, tmp_path / "driver.py", seed, "20", *words], capture_output=True, text=True, timeout=120, check=False
    )

    assert run.returncode == 0, f"seed {seed}: {run.stderr}"
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")
    assert [path.name for path in tmp_path.glob("*.partial")] == []


@pytest.mark.slow
def test_a_killed_command_leaves_no_workers(corpus: PreparationOptions, tmp_path: Path) -> None:
    """Its workers end, and two further commands finish its work at the same time."""
    prepare(replace(corpus, cleaning=Cleaning(parse_rules(RULES))), tmp_path / "whole")
    store_tokenizer(corpus, tmp_path)
    (tmp_path / "driver.py").write_text(DRIVER.replace("    seed", "    batches.read_unit = slowly\n    seed"))
    words = [*arguments(corpus, tmp_path), *(f"--rule={rule}" for rule in RULES)]
    command = [sys.executable, str(tmp_path / "driver.py"), "0", "0", *words, "--workers", "2"]

    killed = subprocess.Popen(command, stderr=subprocess.PIPE)
    wait_until(lambda: any((tmp_path / "out.partial").glob("0*.claim")), "the first lease", 60, process=killed)
    workers = psutil.Process(killed.pid).children(recursive=True)
    killed.kill()
    killed.communicate()
    wait_until(lambda: not any(map(is_active, workers)), "the end of the workers", 60)

    resumed = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    errors = [process.communicate(timeout=scaled(120))[1].decode() for process in resumed]
    # One of the two may start when the other has finished everything.
    num_late = sum("out exists: remove it" in error for error in errors)
    assert num_late < 2, errors
    assert sum(process.returncode == 0 for process in resumed) == 2 - num_late, errors
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


def is_active(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)


# Program that runs `megatape`. Its workers kill themselves at unit 3, as many of them as its second argument says.
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
UnitPasses.write_pass = die  # also in the workers, which import this file
"""


# Module that fails every write of a worker.
FULL_DISK = """
import errno, multiprocessing, os

def full(descriptor):
    raise OSError(errno.ENOSPC, "No space left on device")

if multiprocessing.parent_process() is not None:
    os.fsync = full
"""


@pytest.mark.slow
def test_a_full_disk_of_a_worker_is_reported_with_its_folder(corpus: PreparationOptions, tmp_path: Path) -> None:
    """The folder is lost if the error is sent to the command's process without it."""
    store_tokenizer(corpus, tmp_path)
    module = tmp_path / "full_disk.py"
    module.write_text(FULL_DISK)
    words = [*arguments(corpus, tmp_path), "--workers", "2", "--import", str(module)]

    run = subprocess.run(
        [sys.executable, "-m", "megatape", *words], capture_output=True, text=True, timeout=scaled(120), check=False
    )

    assert run.returncode == 2, run.stderr
    assert f"No space left on device: '{tmp_path}/out.partial'" in run.stderr


def prepare_with_dying_workers(corpus: PreparationOptions, folder: Path, num_deaths: int) -> subprocess.CompletedProcess[str]:
    """Run the command that prepares folder/out with two workers. The first `num_deaths` to reach unit 3 kill themselves."""
    driver = folder / "driver.py"
    driver.write_text(SUICIDE)
    marks = folder / "marks"
    marks.mkdir(exist_ok=True)
    words = [*arguments(corpus, folder), "--workers", "2"]
    command = [sys.executable, str(driver), str(marks), str(num_deaths), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=scaled(120), check=False)


def check_first_deaths_are_reported(folder: Path, errors: str) -> None:
    marks = sorted((folder / "marks").iterdir(), key=lambda mark: mark.stat().st_mtime_ns)
    for mark in marks[:3]:
        # The message names the unit unless the other worker has already taken it over.
        death = rf"a worker \(process {mark.name}\) was killed by SIGKILL( in .*)?, possibly out of memory"
        assert len(re.findall(f"{death}: another one takes over", errors)) == 1, errors


@pytest.mark.slow
def test_a_killed_worker_is_replaced(corpus: PreparationOptions, tmp_path: Path) -> None:
    """Another worker takes over its unit, and the result is the same."""
    prepare(corpus, tmp_path / "whole")
    store_tokenizer(corpus, tmp_path)

    run = prepare_with_dying_workers(corpus, tmp_path, num_deaths=2)

    assert run.returncode == 0, run.stderr
    check_first_deaths_are_reported(tmp_path, run.stderr)
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


@pytest.mark.slow
def test_a_unit_that_kills_all_workers_ends_the_command(corpus: PreparationOptions, tmp_path: Path) -> None:
    """The finished units stay, and the command can be resumed."""
    prepare(corpus, tmp_path / "whole")
    store_tokenizer(corpus, tmp_path)

    run = prepare_with_dying_workers(corpus, tmp_path, num_deaths=1000)
    assert run.returncode == 2
    check_first_deaths_are_reported(tmp_path, run.stderr)
    assert "the last of 4 without a finished unit in between: try fewer" in run.stderr
    assert f"was killed by SIGKILL in {corpus.source.units()[3]}, possibly out of memory" in run.stderr
    assert list((tmp_path / "out.partial/units").iterdir()) != []

    resumed = prepare_with_dying_workers(corpus, tmp_path, num_deaths=0)
    assert resumed.returncode == 0, resumed.stderr
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


def test_dropped_documents_cause_heartbeats(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other machines must not take over a unit just because a rule drops most of its documents."""
    cleaning = Cleaning(parse_rules(["length:minimum=100000"]), drop_duplicates=False)
    heartbeats: list[str] = []
    monkeypatch.setattr(UnitLease, "heartbeat", lambda self: heartbeats.append(self.path.name))

    with pytest.raises(UserError, match="no documents found"):
        prepare(replace(corpus, cleaning=cleaning), tmp_path / "out")

    num_units = len(corpus.source.units())
    of_units = [name for name in heartbeats if name.startswith("0")]
    assert len(of_units) == 30 * NUM_FILES - 4  # one per document; four records are bad
    assert set(of_units) == {f"{number:05}.claim" for number in range(num_units)}
    assert heartbeats.count("finish.claim") == num_units  # one per unit that is assembled
