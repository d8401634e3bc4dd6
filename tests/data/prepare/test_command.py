"""The command prepare, and its processes: a death is heard of at once, and all end with it."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from megatape.data.counts import CorpusCounts
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import BATCH_CHARACTERS, PreparationOptions
from megatape.data.prepare.progress import Progress
from megatape.data.prepare.worker_pool import Death, WorkerPool
from megatape.data.shards.entries import Index
from megatape.data.shards.hashes import split_of
from megatape.data.shards.index import load_index
from megatape.data.shards.layout import first_id
from megatape.data.shards.writer import MEMBER_TOKENS
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import Source
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from tests.helpers.data.data_directory import texts_of
from tests.helpers.processes.command import Command
from tests.helpers.processes.load import scaled
from tests.helpers.processes.planted import planted_that_ran

ROOT = Path(__file__).parents[3]
REAL_C4 = ROOT.parent / "shared" / "data" / "c4" / "en"
ORPHANS = """
import os, signal, sys, time
from megatape.data.prepare.worker_pool import WorkerPool, end_with_parent

def work(connection):
    if sys.argv[1] == "pipe":
        sys.platform = "other"
    end_with_parent()
    connection.send(os.getpid())
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    while True:  # and reports nothing, so that no closed pipe ends it
        time.sleep(1)

if __name__ == "__main__":
    with WorkerPool(work, (), 2) as pool:
        messages = pool.messages()
        print(next(messages), next(messages), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def words(number: int) -> str:
    return f"Document {number}:\n  it is number {number * 7919 % 1000} of the corpus, and no other is. "


@pytest.fixture
def c4(tmp_path: Path) -> Path:
    directory = tmp_path / "c4"
    directory.mkdir()
    for shard in range(3):
        lines = [json.dumps({"text": words(100 * shard + k), "timestamp": "", "url": ""}) + "\n" for k in range(100)]
        (directory / f"c4-train.{shard:05d}-of-00003.json.gz").write_bytes(gzip.compress("".join(lines).encode()))
    return directory


def run(
    source: Source,
    output: Path,
    tokenizer: Tokenizer | None = None,
    share: float = 0.1,
    vocab_size: int = 320,
    batch_characters: int = BATCH_CHARACTERS,
) -> tuple[Index, CorpusCounts]:
    options = PreparationOptions(source, share, tokenizer, vocab_size, batch_characters=batch_characters)
    index, counts = prepare(options, output)
    assert counts is not None
    return index, counts


def test_every_document_arrives_in_its_split(c4: Path, tmp_path: Path) -> None:
    index, counts = run(Source("c4", (str(c4),)), tmp_path / "out")
    wanted = [words(number) for number in range(300)]
    for split in ("train", "validation"):
        expected = [text for text in wanted if split_of(text.encode(), 0.1) == split]
        assert texts_of(tmp_path / "out", split) == expected
        assert index.splits[split].documents == len(expected)
        assert index.splits[split].text_bytes == sum(map(len, expected))
    assert counts.total.written == 300
    assert load_index(tmp_path / "out") == index
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c4", "out"]


def test_two_preparations_give_the_same_bytes(c4: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    second = tmp_path / "second"
    run(Source("c4", (str(c4),)), first)
    run(Source("c4", (str(c4),)), second, batch_characters=1000)  # the batching of documents does not matter either
    names = sorted(path.name for path in first.iterdir())
    tables = ["train-documents.parquet", "validation-documents.parquet"]
    assert names == sorted(["index.json", "tokenizer.model", "train-000000.tar", "validation-000000.tar", *tables])
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


def test_a_given_tokenizer_is_used(c4: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    index, _ = run(Source("c4", (str(c4),), max_documents=100), tmp_path / "out", tokenizer)
    assert index.tokenizer.sha256 == tokenizer.sha256
    assert (tmp_path / "out" / "tokenizer.model").read_bytes() == tokenizer.files["tokenizer.model"]
    assert index.source == {"kind": "c4", "inputs": [str(c4)], "max_documents": 100}


def test_progress_is_reported(c4: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    seen: list[Progress] = []
    corpus = PreparationOptions(Source("c4", (str(c4),)), 0.1, tokenizer, 0, batch_characters=5000)
    index, _ = prepare(corpus, tmp_path / "out", progress=lambda done: seen.append(done))
    so_far = [(done.read_bytes, done.written, done.tokens) for done in seen]
    assert len(seen) > 3 and so_far == sorted(so_far)
    total = sum(path.stat().st_size for path in c4.iterdir())
    assert so_far[-1] == (total, 300, sum(split.tokens for split in index.splits.values()))
    assert all(done.total_bytes == total for done in seen)


@pytest.mark.parametrize(
    "share, max_documents, message",
    [
        (0.0, None, "validation_share is 0.0"),
        (1.0, None, "validation_share is 1.0"),
        (0.02, 3, "the validation split got none of the 3 documents at `validation_share` 0.02: change the share"),
        (0.999, 3, "the train split got none of the 3 documents"),
    ],
)
def test_empty_splits_are_refused(
    c4: Path, tmp_path: Path, tokenizer: Tokenizer, share: float, max_documents: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run(Source("c4", (str(c4),), max_documents=max_documents), tmp_path / "out", tokenizer, share)
    assert [path.name for path in tmp_path.iterdir()] == ["c4"]


def test_validation_files_are_the_validation_split(c4: Path, tmp_path: Path, command: Command) -> None:
    """Of equal documents the one for training is left out, and a tokenizer is trained on training text alone."""
    lines = [json.dumps({"text": text}) + "\n" for text in (words(7), words(250), words(1000), words(1000))]
    (c4 / "c4-validation.00000-of-00001.json.gz").write_bytes(gzip.compress("".join(lines).encode()))
    options = ["--source", "c4", "--input", c4, "--vocab-size", 320, "--workers", 1]
    status, _, errors = command("prepare", "corpus", *options, "--validation-input", c4, "--output", tmp_path / "out")
    assert status == 0, errors
    assert texts_of(tmp_path / "out", "validation") == [words(7), words(250), words(1000)]
    assert texts_of(tmp_path / "out", "train") == [words(number) for number in range(300) if number not in (7, 250)]
    index = load_index(tmp_path / "out")
    assert (index.validation_share, index.source["validation"], index.counts) == (0.0, [str(c4)], {"duplicates": 3})
    command("data", "tokenizer", *options[:-2], "--output", tmp_path / "tok.model")
    assert load_tokenizer(tmp_path / "tok.model").sha256 == index.tokenizer.sha256


def test_too_many_bad_records_stop_the_command(c4: Path, tmp_path: Path, command: Command) -> None:
    """Wherever they are, what is finished stays, and the command goes on where more are allowed."""
    path = c4 / "c4-train.00001-of-00003.json.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + b'{"txt": "x"}\n' * 11))
    options = ["prepare", "corpus", "--source", "c4", "--input", c4, "--vocab-size", 320, "--workers", 1]
    status, _, errors = command(*options, "--output", tmp_path / "out")
    place = f"{path}:101: `text` is missing"
    assert status == 2 and "of 311 records 11 are bad and 0 longer than --max-record-bytes, more than --max-bad" in errors
    assert f"the first: {place}" in errors
    assert not (tmp_path / "out.partial").exists()  # at the end of the first unit, not of all
    assert command(*options, "--output", tmp_path / "out", "--max-bad-fraction", 0.05)[0] == 0
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-13]))
    assert command(*options, "--output", tmp_path / "few")[0] == 0  # ten are never too many


def test_files_skipped_by_name_are_in_the_ledger(command: Command, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Skipped files are printed by input before and after the work. Merging keeps the counts, and too many are refused."""
    folder = tmp_path / "lines"
    folder.mkdir()
    (tmp_path / "tok.model").write_bytes(tokenizer.files["tokenizer.model"])
    (folder / "more.json").write_text("lost")
    given = ["prepare", "corpus", "--source", "jsonl", "--input", folder, "--tokenizer", tmp_path / "tok.model"]
    given += ["--validation-share", 0.3, "--workers", 1]
    for name, first in (("whole", 0), ("second", 10)):
        for number in range(10):
            (folder / f"{number:02}.jsonl").write_text(json.dumps({"text": words(first + number)}) + "\n")
        status, printed, errors = command(*given, "--output", tmp_path / name)
    assert status == 0, errors
    assert f"{folder}: 1 file (4 bytes) skipped by name: more.json\n" in printed
    assert f"{folder}: 10 documents read, 10 written; 1 file skipped by name\n" in printed
    merged = command("data", "merge", tmp_path / "merged", tmp_path / "whole", tmp_path / "second")
    assert merged[0] == 0, merged
    for name, num_files in (("whole", 1), ("merged", 2)):
        counts = load_index(tmp_path / name).ledger[str(folder)]
        assert (counts.skipped_files, counts.skipped_bytes) == (num_files, 4 * num_files)
    status, page, errors = command("data", "report", tmp_path / "whole")
    assert status == 0 and "skipped files" in page, errors
    for number in range(5):
        (folder / f"{number}.json").write_text("lost")
    status, _, errors = command(*given, "--output", tmp_path / "third")
    assert status == 2 and errors.count("\n") == 1
    assert "6 of 16 files" in errors and "more than --max-skipped-fraction 0.1" in errors
    assert command(*given, "--dry-run", 3)[0] == 2
    assert command(*given, "--dry-run", 3, "--max-skipped-fraction", 1)[0] == 0


def test_a_failure_leaves_nothing_behind(c4: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    last = c4 / "c4-train.00002-of-00003.json.gz"
    last.write_bytes(last.read_bytes()[:-20])
    with pytest.raises(ValueError, match="c4-train.00002-of-00003.json.gz: corrupted or truncated"):
        run(Source("c4", (str(c4),)), tmp_path / "out", tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["c4"]


def test_nothing_is_overwritten(c4: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    for name in ("out", "other.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious").touch()
    with pytest.raises(FileExistsError, match="out exists"):
        run(Source("c4", (str(c4),)), tmp_path / "out", tokenizer)
    run(Source("c4", (str(c4),)), tmp_path / "other", tokenizer)
    assert (tmp_path / "out" / "precious").exists() and (tmp_path / "other.tmp" / "precious").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"c4", "out", "other", "other.tmp"}


@pytest.fixture
def c4_or_real(request: pytest.FixtureRequest, c4: Path) -> Path:
    if request.param == "made":
        return c4
    if not REAL_C4.is_dir():
        pytest.skip(f"no {REAL_C4.name} data beside the project")
    return REAL_C4


@pytest.mark.parametrize("c4_or_real, vocab_size", [("made", 320), ("real", 2048)], indirect=["c4_or_real"])
def test_commands_from_c4_to_report(command: Command, c4_or_real: Path, vocab_size: int, tmp_path: Path) -> None:
    model = tmp_path / "tok.model"
    data = tmp_path / "data"
    status, _, errors = command(
        "data", "tokenizer", "--source", "c4", "--input", c4_or_real, "--output", model, "--vocab-size", vocab_size
    )
    assert (status, errors) == (0, "")
    status, _, errors = command(
        "prepare", "corpus", "--source", "c4", "--input", c4_or_real, "--output", data, "--tokenizer", model
    )
    assert status == 0, errors
    source = Source("c4", (str(c4_or_real),))
    wanted = [document.text for document in read_documents(source, CorpusCounts())]
    assert sorted(texts_of(data, "train") + texts_of(data, "validation")) == sorted(wanted)
    status, report, errors = command("data", "report", data, "--verify")
    assert status == 0, errors
    assert load_tokenizer(model).sha256 in report
    members = sum(-(-shard.tokens // shard.member_tokens) for shard in load_index(data).splits["train"].shards)
    assert f"train: {members} members verified" in report
    first = next(text for text in wanted if split_of(text.encode(), 0.02) == "train")
    assert first[:40] in report


def test_commands_end_with_one_line_and_code_2(command: Command, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{\n")
    (tmp_path / "data").mkdir()
    for ended, message in [
        (
            command("data", "tokenizer", "--source", "jsonl", "--input", bad, "--output", tmp_path / "tok"),
            "no documents found",
        ),
        (command("prepare", "corpus", "--source", "c4", "--input", "nowhere", "--output", tmp_path / "o"), "no such file"),
        (command("prepare", "corpus", "--source", "python", "--output", tmp_path / "data"), "data exists: remove it"),
        (command("data", "report", tmp_path), "index.json: not found"),
    ]:
        status, _, errors = ended
        assert status == 2
        assert errors.startswith("error: ") and errors.count("\n") == 1
        assert message in errors


def test_report_finds_a_flipped_byte(command: Command, c4: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    run(Source("c4", (str(c4),)), tmp_path / "out", tokenizer)
    shard = tmp_path / "out" / "validation-000000.tar"
    content = bytearray(shard.read_bytes())
    content[first_id(0, MEMBER_TOKENS, 2)] ^= 1
    shard.write_bytes(content)
    status, _, errors = command("data", "report", shard.parent, "--verify")
    assert status == 2
    assert "validation-000000.tar member 0: corrupt" in errors


def talk(connection: Connection, pause: float) -> None:
    """Send messages without end."""
    while True:
        connection.send(os.getpid())
        time.sleep(pause)


def quit_well(connection: Connection) -> None:
    connection.send("last words")


@pytest.mark.parametrize("num_workers", [16, pytest.param(48, marks=pytest.mark.slow)])
def test_death_of_a_worker_is_reported_within_a_second(num_workers: int) -> None:
    """Though there is always another message: a look at the processes only when there is none would never happen."""
    alive = set[int]()
    killed = 0
    then = 0.0
    deaths = list[Death]()
    with WorkerPool(talk, (0.002 * num_workers,), num_workers) as pool:
        for message in pool.messages():
            if isinstance(message, Death):
                assert time.monotonic() - then < 1.0
                deaths.append(message)
                if len(deaths) == 2:
                    break
                pool.start()  # the second one to be killed is the replacement
                alive.remove(message.pid)
            elif message not in alive and message != killed:
                alive.add(message)
                if len(alive) == num_workers:
                    killed = message
                    then = time.monotonic()
                    os.kill(killed, signal.SIGKILL)
        pids = pool.pids
    assert len(pids) == num_workers - 1 and not any(map(psutil.pid_exists, filter(None, pids)))
    assert all(death.how == "was killed by SIGKILL" for death in deaths)


def test_clean_exit_ends_message_stream() -> None:
    with WorkerPool(quit_well, (), 1) as pool:
        assert list(pool.messages()) == ["last words"]


def test_workers_run_no_module_of_the_current_directory(planted_folder: Path) -> None:
    with WorkerPool(quit_well, (), 1) as pool:
        assert list(pool.messages()) == ["last words"]
    assert planted_that_ran(planted_folder) == ""


@pytest.mark.parametrize("way", ["signal", "pipe"])
def test_workers_end_with_the_command(tmp_path: Path, way: str) -> None:
    """A command that is killed leaves no worker, which would keep its claims and its memory."""
    (tmp_path / "driver.py").write_text(ORPHANS)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "driver.py"), way]
    run = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=False, timeout=scaled(60))
    pids = [int(pid) for pid in run.stdout.split()]
    deadline = time.monotonic() + 10
    assert len(pids) == 2 and run.returncode == -signal.SIGKILL
    while any(_is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, "workers outlive the command"
        time.sleep(0.02)


def _is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
