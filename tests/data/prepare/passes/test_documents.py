"""Documents kept by a preparation: none is missing, and preparing them again gives the same shards without cleaning again."""

import hashlib
import json
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import ScoreRule, TextRule, parse_rules
from megatape.data.counts import RecordCounts
from megatape.data.derived.append import append
from megatape.data.derived.merge import merge
from megatape.data.io.records import read_records
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.shards.entries import SPLITS
from megatape.data.shards.index import load_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.sources.source import Source
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from tests.helpers.data.data_directory import edit_index
from tests.helpers.data.preparation import NUM_FILES, UNIT_BYTES, text_of, write_corpus
from tests.helpers.models.imported import write_llama2


@dataclass(frozen=True)
class LastDigit(ScoreRule):
    """Drops texts with a length ending in a small digit."""

    minimum: float = 0.2

    def score(self, text: str) -> float:
        return len(text) % 10 / 10


@dataclass(frozen=True)
class Shout(TextRule):
    """Changes texts with an odd number of ones."""

    def apply(self, text: str) -> str:
        if text.count("1") % 2 == 0:
            return text
        return text.upper()


RULES = {"shout": Shout(), "last_digit": LastDigit(), **parse_rules(["near_duplicates"])}
KEEP_ALL = Cleaning(drop_duplicates=False)
NUM_NEAR_DUPLICATES = 20


@pytest.fixture(params=[UNIT_BYTES, 2**20], ids=["many units", "one unit"])
def corpus(request: pytest.FixtureRequest, tmp_path: Path, tokenizer: Tokenizer) -> PreparationOptions:
    """Prepare bad records, empty texts, exact and near duplicates, with scoring and editing rules."""
    source = replace(write_corpus(tmp_path / "texts"), unit_bytes=request.param)
    records = [{"text": text_of(3) + f" {number}", "url": f"http://{number}"} for number in range(NUM_NEAR_DUPLICATES)]
    write_records(tmp_path / "texts" / "98.jsonl", records)
    return PreparationOptions(source, 0.1, tokenizer, 0, Cleaning(RULES))


def write_records(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_texts(path: Path, numbers: range) -> Path:
    return write_records(path, [{"text": text_of(number)} for number in numbers])


def records_in(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Read one kind of documents, "documents" or "dropped", from a data directory."""
    records = []
    for file in sorted(folder.glob(f"{kind}-*.jsonl.zst")):
        records += [record for _, record in read_records(str(file), 2**20, RecordCounts())]
    return records


def hashes_below(folder: Path) -> dict[str, str]:
    """Return relative paths of all files in a folder and below -> SHA-256."""
    hashes = {}
    for path in folder.rglob("*"):
        if path.is_file():
            hashes[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return hashes


def hashes_of_shards(folder: Path) -> dict[str, str]:
    """Return names of shards and document tables -> SHA-256."""
    return {name: sha256 for name, sha256 in hashes_below(folder).items() if name.endswith((".tar", ".parquet"))}


def prepare_again(folder: Path, output: Path, tokenizer: Tokenizer) -> Path:
    """Prepare the documents kept in a data directory, without cleaning them again."""
    source = Source("documents", (str(folder),))
    prepare(PreparationOptions(source, 0.1, tokenizer, 0, KEEP_ALL), output)
    return output


@pytest.fixture
def kept(corpus: PreparationOptions, tmp_path: Path) -> Path:
    """A data directory prepared with its documents."""
    prepare(replace(corpus, keep_documents=True), tmp_path / "kept")
    return tmp_path / "kept"


@pytest.fixture
def foreign(corpus: PreparationOptions, tmp_path: Path) -> Path:
    """Another data directory with documents."""
    source = Source("jsonl", (str(write_texts(tmp_path / "foreign.jsonl", range(900, 950))),))
    prepare(replace(corpus, source=source, keep_documents=True), tmp_path / "foreign")
    return tmp_path / "foreign"


def test_keeping_documents_does_not_change_the_data(corpus: PreparationOptions, kept: Path, tmp_path: Path) -> None:
    index, _ = prepare(corpus, tmp_path / "whole")

    assert hashes_of_shards(kept) == hashes_of_shards(tmp_path / "whole")
    assert load_index(kept).source == index.source
    assert load_index(kept).rules == index.rules


def test_kept_documents_prepare_to_the_same_data(
    corpus: PreparationOptions, kept: Path, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept documents are prepared after the texts are deleted, with the first tokenizer and another one, and without a rule."""
    another_tokenizer = load_tokenizer(write_llama2(tmp_path / "llama2"))
    prepare(corpus, tmp_path / "whole")
    prepare(replace(corpus, tokenizer=another_tokenizer), tmp_path / "whole-another")
    shutil.rmtree(tmp_path / "texts")
    monkeypatch.setattr(Shout, "apply", None)
    monkeypatch.setattr(LastDigit, "score", None)

    again = prepare_again(kept, tmp_path / "again", tokenizer)
    another = prepare_again(kept, tmp_path / "another", another_tokenizer)

    assert hashes_of_shards(again) == hashes_of_shards(tmp_path / "whole")
    assert hashes_of_shards(another) == hashes_of_shards(tmp_path / "whole-another")
    index = load_index(again)
    expected = load_index(tmp_path / "whole")
    for split in SPLITS:
        assert index.fingerprint(split) == expected.fingerprint(split)


def test_kept_documents_record_their_source_and_rules(kept: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Whether they are given as a folder or by their files."""
    first = load_index(kept)
    cleaned = [{"source": first.source, "rules": first.rules}]
    files = tuple(map(str, kept.glob("documents-*.jsonl.zst")))

    again = prepare_again(kept, tmp_path / "again", tokenizer)

    assert load_index(again).source == {"kind": "documents", "inputs": [str(kept)], "cleaned": cleaned}
    assert Source("documents", files).describe() == {"kind": "documents", "inputs": list(files), "cleaned": cleaned}
    document = StoredSplit(again, "train").tables.document(0)
    assert document.location.endswith("texts/00.jsonl:1")
    assert "last_digit" in json.loads(document.scores)


def test_no_document_is_missing(corpus: PreparationOptions, tmp_path: Path) -> None:
    """Every document read is kept, or dropped for the reason counted in the ledger."""
    index, _ = prepare(replace(corpus, keep_documents=True), tmp_path / "kept")
    num_bad = index.counts.pop("bad records")

    kept = records_in(tmp_path / "kept", "documents")
    dropped = records_in(tmp_path / "kept", "dropped")

    assert index.counts.keys() == {"empty documents", "duplicates", "near_duplicates", "last_digit: below 0.2"}
    assert Counter(record["reason"] for record in dropped) == index.counts
    assert [record for record in kept if record["reason"]] == []
    assert len(kept) == sum(split.documents for split in index.splits.values())
    locations = [record["place"] for record in kept + dropped]
    assert len(set(locations)) == len(locations)
    assert len(locations) == 30 * NUM_FILES + NUM_NEAR_DUPLICATES - num_bad


def test_records_have_texts_scores_edits_and_urls(kept: Path, tmp_path: Path) -> None:
    records = records_in(kept, "documents") + records_in(kept, "dropped")
    by_location = {record["place"]: record for record in records}

    for number in range(5):
        record = by_location[f"{tmp_path}/texts/00.jsonl:{number + 1}"]
        original = text_of(number)
        edited = Shout().apply(original)
        expected_edits = []
        if edited != original:
            expected_edits = ["shout"]
        assert record["text"] == edited
        assert record["scores"] == {"last_digit": len(edited) % 10 / 10}
        assert record["edited"] == expected_edits
    assert {record["url"] for record in records} == {"", *(f"http://{number}" for number in range(NUM_NEAR_DUPLICATES))}


class Rename(NamedTuple):
    """Renaming a file with a suffix into a folder."""

    folder: str
    suffix: str = ""


RENAMES_BY_STEP = {
    "first pass": Rename("verdicts"),
    "write pass": Rename("units"),
    "assembly": Rename("final", ".zst"),
}


def fail_at_rename(patch: pytest.MonkeyPatch, failing: Rename, number: int) -> None:
    """Let the n-th renaming of this kind fail. As in a killed process, nothing is cleaned up."""
    rename = Path.rename
    targets = []

    def fail(self: Path, target: Path) -> None:
        if target.parent.name == failing.folder and target.name.endswith(failing.suffix):
            targets.append(target)
        if len(targets) == number:
            raise OSError("the disk is full")
        rename(self, target)

    patch.setattr(Path, "rename", fail)
    patch.setattr(PartialFolder, "remove", lambda self: None)


@pytest.mark.parametrize("step", RENAMES_BY_STEP)
def test_interrupted_command_completes_the_documents(
    corpus: PreparationOptions, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command resumes to the same bytes, but not without its documents."""
    has_many_units = corpus.source.unit_bytes == UNIT_BYTES
    if step == "first pass" and not has_many_units:
        pytest.skip("a single unit has no first pass")
    corpus = replace(corpus, keep_documents=True)
    prepare(corpus, tmp_path / "whole")
    with monkeypatch.context() as patch:
        fail_at_rename(patch, RENAMES_BY_STEP[step], number=1 + has_many_units)
        with pytest.raises(OSError, match="the disk is full"):
            prepare(corpus, tmp_path / "out")

    with pytest.raises(UserError, match=r"out.partial was begun with other keep_documents: True, now False. Give the same"):
        prepare(replace(corpus, keep_documents=False), tmp_path / "out")
    prepare(corpus, tmp_path / "out")

    assert hashes_below(tmp_path / "out") == hashes_below(tmp_path / "whole")


def test_kept_documents_of_several_preparations_are_one_source(
    corpus: PreparationOptions, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    """The second preparation drops duplicates of documents in the first one. Held-out documents stay held out."""
    first = tmp_path / "first"
    second = tmp_path / "second"
    training = write_texts(tmp_path / "more.jsonl", range(100, 500))
    validation = write_texts(tmp_path / "held.jsonl", range(1))
    source = Source("jsonl", (str(training),), validation=(str(validation),))
    prepare(PreparationOptions(source, 0.1, tokenizer, 0, keep_documents=True), first)
    prepare(replace(corpus, cleaning=Cleaning(), keep_documents=True), second)
    assert hashes_of_shards(prepare_again(first, tmp_path / "again", tokenizer)) == hashes_of_shards(first)

    both = Source("documents", (str(first), str(second)))
    index, _ = prepare(PreparationOptions(both, 0.1, tokenizer, 0), tmp_path / "both")

    num_shared = index.ledger[str(second)].dropped["duplicates"]
    assert num_shared > 100
    assert index.counts == {"duplicates": num_shared}
    first_validation_document = StoredSplit(tmp_path / "both", "validation").tables.document(0)
    assert first_validation_document.location == f"{tmp_path}/held.jsonl:1"


@pytest.mark.parametrize("option", ["max_documents", "validation"])
def test_held_out_documents_stay_held_out(corpus: PreparationOptions, tmp_path: Path, option: str) -> None:
    """A limit, or other validation files, would make them training documents. Without their file, both are accepted."""
    training = write_texts(tmp_path / "more.jsonl", range(1, 20))
    validation = write_texts(tmp_path / "held.jsonl", range(1))
    source = Source("jsonl", (str(training),), validation=(str(validation),))
    kept = tmp_path / "kept"
    prepare(replace(corpus, source=source, cleaning=Cleaning(), keep_documents=True), kept)
    held_out_files = tuple(map(str, kept.glob("documents-*validation*")))
    training_files = tuple(str(path) for path in kept.glob("documents-*") if str(path) not in held_out_files)
    refused: dict[str, Any] = {"max_documents": 5}
    accepted: dict[str, Any] = {"max_documents": 5}
    if option == "validation":
        refused = {"validation": ("a",)}
        accepted = {"validation": held_out_files}

    with pytest.raises(UserError, match=r"validation.jsonl.zst is held out: with max_documents or `validation_input`"):
        Source("documents", (str(kept),), **refused).units()

    assert Source("documents", training_files, **accepted).units()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"input .*/empty: no file named documents-\*.jsonl.zst in this directory"),
        ({"max_documents": 5}, r"max_documents: `source` documents takes one `input` with it, got 2: give one"),
    ],
    ids=["a folder without documents", "a limit for several inputs"],
)
def test_impossible_inputs_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    (tmp_path / "empty").mkdir()
    inputs = (str(tmp_path / "empty"), str(tmp_path / "missing"))

    with pytest.raises(UserError, match=message):
        Source("documents", inputs, **options).units()


@pytest.mark.parametrize("is_listed", [True, False], ids=["listed in the index", "of an earlier version"])
def test_files_that_are_not_those_of_the_folder(
    kept: Path, foreign: Path, tmp_path: Path, tokenizer: Tokenizer, is_listed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing file once lost a third of the documents with status 0, and another run's file was read as the folder's."""
    if not is_listed:
        edit_index(kept, lambda index: index.pop("document_files"))
    expected = hashes_of_shards(prepare_again(kept, tmp_path / "whole", tokenizer))
    warnings = [message for message in caplog.messages if "was written by an earlier version" in message]
    assert len(warnings) == int(not is_listed)

    files = sorted(kept.glob("documents-*.jsonl.zst"))
    last = files[-1]
    content = last.read_bytes()
    foreign_file = foreign / "documents-00000.jsonl.zst"
    unlisted = kept / "documents-00077.jsonl.zst"

    def check_refused(message: str) -> None:
        with pytest.raises(UserError, match=message):
            prepare_again(kept, tmp_path / "out", tokenizer)
        shutil.rmtree(tmp_path / "out.partial", ignore_errors=True)

    last.unlink()
    if len(files) > 1:
        check_refused(f"{kept}: files of documents that its index.json lists are missing: {last.name}. Copy them again")

    shutil.copy(foreign_file, last)
    check_refused(rf"{last}: .*, copy it again")

    last.write_bytes(content)
    shutil.copy(foreign_file, unlisted)
    check_refused(f"{unlisted}: ")

    unlisted.unlink()
    assert hashes_of_shards(prepare_again(kept, tmp_path / "again", tokenizer)) == expected


@pytest.mark.parametrize("is_listed", [True, False], ids=["listed in the index", "of an earlier version"])
def test_some_files_of_a_folder_are_a_source(kept: Path, tmp_path: Path, tokenizer: Tokenizer, is_listed: bool) -> None:
    """Files given by name need not be all files of their folder."""
    if not is_listed:
        edit_index(kept, lambda index: index.pop("document_files"))
    *files, last = sorted(kept.glob("documents-*.jsonl.zst"))
    last.unlink()
    if not files:
        pytest.skip("the folder has a single file")
    source = Source("documents", tuple(map(str, files)))

    index, _ = prepare(PreparationOptions(source, 0.1, tokenizer, 0, KEEP_ALL), tmp_path / "out")

    assert index.splits["train"].documents < load_index(kept).splits["train"].documents


def test_documents_of_a_merged_folder(kept: Path, foreign: Path) -> None:
    """The folder's files only have the documents from the first merged folder."""
    append([foreign], kept)

    with pytest.raises(UserError, match=f"{kept} was merged, so its files of documents have only a part"):
        Source("documents", (str(kept),)).units()


def test_a_merged_folder_lists_no_files_of_documents(foreign: Path, tmp_path: Path) -> None:
    merge([foreign], tmp_path / "copy")

    assert load_index(foreign).document_files != []
    assert not load_index(tmp_path / "copy").document_files
