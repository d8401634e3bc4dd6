"""The command prepare: documents, splits, skipped files, and refusals."""

import gzip
import json
from pathlib import Path

import pytest

from megatape.data.counts import CorpusCounts
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import BATCH_CHARACTERS, PreparationOptions
from megatape.data.prepare.progress import Progress
from megatape.data.shards.entries import Index
from megatape.data.shards.hashes import split_of
from megatape.data.shards.index import load_index
from megatape.data.shards.layout import first_id
from megatape.data.shards.writer import MEMBER_TOKENS
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import Source
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from tests.helpers.data.data_directory import flip, hashes_of, texts_of
from tests.helpers.processes.command import Command

ROOT = Path(__file__).parents[3]
REAL_C4 = ROOT.parent / "shared" / "data" / "c4" / "en"


def text_of(number: int) -> str:
    return f"Document {number}:\n  it is number {number * 7919 % 1000} of the corpus, and no other is. "


@pytest.fixture
def c4(tmp_path: Path) -> Path:
    """Return a folder with three files of 100 documents each, laid out like C4."""
    folder = tmp_path / "c4"
    folder.mkdir()
    for shard in range(3):
        records = [{"text": text_of(100 * shard + line), "timestamp": "", "url": ""} for line in range(100)]
        content = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"c4-train.{shard:05d}-of-00003.json.gz").write_bytes(gzip.compress(content.encode()))
    return folder


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


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
    output = tmp_path / "out"

    index, counts = run(Source("c4", (str(c4),)), output)

    texts = [text_of(number) for number in range(300)]
    for split in ("train", "validation"):
        expected = [text for text in texts if split_of(text.encode(), 0.1) == split]
        assert texts_of(output, split) == expected
        assert index.splits[split].documents == len(expected)
        assert index.splits[split].text_bytes == sum(map(len, expected))
    assert counts.total.written == 300
    assert load_index(output) == index
    assert names_in(tmp_path) == {"c4", "out"}


def test_two_preparations_give_the_same_bytes(c4: Path, tmp_path: Path) -> None:
    """Tokenizing any number of documents at a time gives the same result, too."""
    first = tmp_path / "first"
    second = tmp_path / "second"
    source = Source("c4", (str(c4),))

    run(source, first)
    run(source, second, batch_characters=1000)

    assert names_in(first) == {
        "index.json",
        "tokenizer.model",
        "train-000000.tar",
        "train-documents.parquet",
        "validation-000000.tar",
        "validation-documents.parquet",
    }
    assert hashes_of(second) == hashes_of(first)


def test_a_given_tokenizer_is_used(c4: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    index, _ = run(Source("c4", (str(c4),), max_documents=100), tmp_path / "out", tokenizer)

    assert index.tokenizer.sha256 == tokenizer.sha256
    assert (tmp_path / "out" / "tokenizer.model").read_bytes() == tokenizer.files["tokenizer.model"]
    assert index.source == {"kind": "c4", "inputs": [str(c4)], "max_documents": 100}


def test_progress_is_reported(c4: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    reports: list[Progress] = []
    corpus = PreparationOptions(Source("c4", (str(c4),)), 0.1, tokenizer, 0, batch_characters=5000)

    index, _ = prepare(corpus, tmp_path / "out", progress=reports.append)

    progress = [(report.read_bytes, report.written, report.tokens) for report in reports]
    total_bytes = sum(path.stat().st_size for path in c4.iterdir())
    total_tokens = sum(split.tokens for split in index.splits.values())
    assert len(progress) > 3
    assert progress == sorted(progress)
    assert progress[-1] == (total_bytes, 300, total_tokens)
    assert {report.total_bytes for report in reports} == {total_bytes}


@pytest.mark.parametrize(
    ("share", "max_documents", "message"),
    [
        pytest.param(0.0, None, "validation_share is 0.0", id="share 0"),
        pytest.param(1.0, None, "validation_share is 1.0", id="share 1"),
        pytest.param(
            0.02,
            3,
            "the validation split got none of the 3 documents at `validation_share` 0.02: change the share",
            id="small share",
        ),
        pytest.param(0.999, 3, "the train split got none of the 3 documents", id="large share"),
    ],
)
def test_empty_splits_are_refused(
    c4: Path, tmp_path: Path, tokenizer: Tokenizer, share: float, max_documents: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run(Source("c4", (str(c4),), max_documents=max_documents), tmp_path / "out", tokenizer, share)

    assert names_in(tmp_path) == {"c4"}


def test_validation_files_are_the_validation_split(c4: Path, tmp_path: Path, command: Command) -> None:
    """Training documents equal to a validation document are dropped. The tokenizer sees training text only."""
    validation = [text_of(7), text_of(250), text_of(1000), text_of(1000)]
    lines = [json.dumps({"text": text}) + "\n" for text in validation]
    (c4 / "c4-validation.00000-of-00001.json.gz").write_bytes(gzip.compress("".join(lines).encode()))
    output = tmp_path / "out"
    tokenizer_path = tmp_path / "tok.model"
    options = ["--source", "c4", "--input", c4, "--vocab-size", 320]

    status, _, errors = command("prepare", "corpus", *options, "--workers", 1, "--validation-input", c4, "--output", output)
    command("data", "tokenizer", *options, "--output", tokenizer_path)

    assert status == 0, errors
    assert texts_of(output, "validation") == [text_of(7), text_of(250), text_of(1000)]
    assert texts_of(output, "train") == [text_of(number) for number in range(300) if number not in (7, 250)]
    index = load_index(output)
    assert index.validation_share == 0.0
    assert index.source["validation"] == [str(c4)]
    assert index.counts == {"duplicates": 3}
    assert index.tokenizer.sha256 == load_tokenizer(tokenizer_path).sha256


def append_lines(path: Path, lines: bytes) -> None:
    """Append lines to a gzip file."""
    content = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(content + lines))


BAD_RECORD = b'{"txt": "x"}\n'


def test_too_many_bad_records_stop_the_command(c4: Path, tmp_path: Path, command: Command) -> None:
    """The command fails after the first unit, not after all. It succeeds when allowing more bad records."""
    path = c4 / "c4-train.00001-of-00003.json.gz"
    append_lines(path, BAD_RECORD * 11)
    words = ["prepare", "corpus", "--source", "c4", "--input", c4, "--vocab-size", 320, "--workers", 1]
    words += ["--output", tmp_path / "out"]

    status, _, errors = command(*words)
    assert status == 2
    assert "of 311 records 11 are bad and 0 longer than --max-record-bytes, more than --max-bad" in errors
    assert f"the first: {path}:101: `text` is missing" in errors
    assert not (tmp_path / "out.partial").exists()

    status, _, errors = command(*words, "--max-bad-fraction", 0.05)
    assert status == 0, errors


def test_ten_bad_records_are_never_too_many(c4: Path, tmp_path: Path, command: Command) -> None:
    append_lines(c4 / "c4-train.00001-of-00003.json.gz", BAD_RECORD * 10)
    words = ["prepare", "corpus", "--source", "c4", "--input", c4, "--vocab-size", 320, "--workers", 1]

    status, _, errors = command(*words, "--output", tmp_path / "out")

    assert status == 0, errors


@pytest.fixture
def lines_folder(tmp_path: Path) -> Path:
    """A folder with ten files of lines, and a file skipped because of its name."""
    folder = tmp_path / "lines"
    folder.mkdir()
    (folder / "more.json").write_text("lost")
    write_line_files(folder, first=0)
    return folder


def write_line_files(folder: Path, first: int) -> None:
    for number in range(10):
        (folder / f"{number:02}.jsonl").write_text(json.dumps({"text": text_of(first + number)}) + "\n")


@pytest.fixture
def prepare_lines(lines_folder: Path, tmp_path: Path, tokenizer: Tokenizer) -> list[object]:
    """Return a command line preparing `lines_folder`."""
    model = tmp_path / "tok.model"
    model.write_bytes(tokenizer.files["tokenizer.model"])
    words = ["prepare", "corpus", "--source", "jsonl", "--input", lines_folder, "--tokenizer", model]
    return [*words, "--validation-share", 0.3, "--workers", 1]


def test_files_skipped_by_name_are_printed_by_input(
    lines_folder: Path, prepare_lines: list[object], tmp_path: Path, command: Command
) -> None:
    """Skipped files are printed before and after the work, and in the report."""
    status, printed, errors = command(*prepare_lines, "--output", tmp_path / "out")
    assert status == 0, errors
    assert f"{lines_folder}: 1 file (4 bytes) skipped by name: more.json\n" in printed
    assert f"{lines_folder}: 10 documents read, 10 written; 1 file skipped by name\n" in printed

    status, page, errors = command("data", "report", tmp_path / "out")
    assert status == 0, errors
    assert "skipped files" in page


def test_files_skipped_by_name_are_in_the_ledger(
    lines_folder: Path, prepare_lines: list[object], tmp_path: Path, command: Command
) -> None:
    """Merging adds up the counts."""
    command(*prepare_lines, "--output", tmp_path / "first")
    write_line_files(lines_folder, first=10)
    command(*prepare_lines, "--output", tmp_path / "second")
    status, _, errors = command("data", "merge", tmp_path / "merged", tmp_path / "first", tmp_path / "second")
    assert status == 0, errors

    for name, num_files in (("first", 1), ("merged", 2)):
        counts = load_index(tmp_path / name).ledger[str(lines_folder)]
        assert counts.skipped_files == num_files
        assert counts.skipped_bytes == 4 * num_files


def test_too_many_files_skipped_by_name_are_refused(
    lines_folder: Path, prepare_lines: list[object], tmp_path: Path, command: Command
) -> None:
    for number in range(5):
        (lines_folder / f"{number}.json").write_text("lost")

    status, _, errors = command(*prepare_lines, "--output", tmp_path / "out")
    assert status == 2
    assert errors.count("\n") == 1
    assert "6 of 16 files" in errors
    assert "more than --max-skipped-fraction 0.1" in errors

    assert command(*prepare_lines, "--dry-run", 3)[0] == 2
    assert command(*prepare_lines, "--dry-run", 3, "--max-skipped-fraction", 1)[0] == 0


def test_a_failure_leaves_nothing_behind(c4: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    last = c4 / "c4-train.00002-of-00003.json.gz"
    last.write_bytes(last.read_bytes()[:-20])

    with pytest.raises(ValueError, match="c4-train.00002-of-00003.json.gz: corrupted or truncated"):
        run(Source("c4", (str(c4),)), tmp_path / "out", tokenizer)

    assert names_in(tmp_path) == {"c4"}


def test_nothing_is_overwritten(c4: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    source = Source("c4", (str(c4),))
    for name in ("out", "other.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious").touch()

    with pytest.raises(FileExistsError, match="out exists"):
        run(source, tmp_path / "out", tokenizer)
    run(source, tmp_path / "other", tokenizer)

    assert (tmp_path / "out" / "precious").exists()
    assert (tmp_path / "other.tmp" / "precious").exists()
    assert names_in(tmp_path) == {"c4", "out", "other", "other.tmp"}


@pytest.fixture
def c4_or_real(request: pytest.FixtureRequest, c4: Path) -> Path:
    """Return the synthetic folder, or real C4 data."""
    if request.param == "synthetic":
        return c4
    if not REAL_C4.is_dir():
        pytest.skip(f"no {REAL_C4.name} data beside the project")
    return REAL_C4


@pytest.mark.parametrize(("c4_or_real", "vocab_size"), [("synthetic", 320), ("real", 2048)], indirect=["c4_or_real"])
def test_commands_from_c4_to_report(command: Command, c4_or_real: Path, vocab_size: int, tmp_path: Path) -> None:
    model = tmp_path / "tok.model"
    data = tmp_path / "data"
    source_words = ["--source", "c4", "--input", c4_or_real]
    documents = read_documents(Source("c4", (str(c4_or_real),)), CorpusCounts())
    texts = [document.text for document in documents]

    status, _, errors = command("data", "tokenizer", *source_words, "--output", model, "--vocab-size", vocab_size)
    assert status == 0
    assert errors == ""

    status, _, errors = command("prepare", "corpus", *source_words, "--output", data, "--tokenizer", model)
    assert status == 0, errors
    assert sorted(texts_of(data, "train") + texts_of(data, "validation")) == sorted(texts)

    status, report, errors = command("data", "report", data, "--verify")
    assert status == 0, errors
    assert load_tokenizer(model).sha256 in report
    shards = load_index(data).splits["train"].shards
    num_members = sum(-(-shard.tokens // shard.member_tokens) for shard in shards)
    assert f"train: {num_members} members verified" in report
    first_training_text = next(text for text in texts if split_of(text.encode(), 0.02) == "train")
    assert first_training_text[:40] in report


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("data tokenizer --source jsonl --input {folder}/bad.jsonl --output {folder}/tok", "no documents found"),
        ("prepare corpus --source c4 --input nowhere --output {folder}/out", "no such file"),
        ("prepare corpus --source python --output {folder}/data", "data exists: remove it"),
        ("data report {folder}", "index.json: not found"),
    ],
)
def test_commands_fail_with_one_line_and_status_2(command: Command, tmp_path: Path, words: str, message: str) -> None:
    (tmp_path / "bad.jsonl").write_text("{\n")
    (tmp_path / "data").mkdir()

    status, _, errors = command(*words.format(folder=tmp_path).split())

    assert status == 2
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert message in errors


def test_report_finds_a_flipped_byte(command: Command, c4: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    output = tmp_path / "out"
    run(Source("c4", (str(c4),)), output, tokenizer)
    flip(output / "validation-000000.tar", first_id(0, MEMBER_TOKENS, 2))

    status, _, errors = command("data", "report", output, "--verify")

    assert status == 2
    assert "validation-000000.tar member 0: corrupt" in errors
