"""Documents that a preparation keeps: none is missing, and their shards are those of preparing in one go, without cleaning."""

import hashlib
import json
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import ScoreRule, TextRule, parse_rules
from megatape.data.counts import RecordCounts
from megatape.data.derived.append import append
from megatape.data.derived.merge import merge
from megatape.data.io.records import read_records
from megatape.data.prepare.command import prepare
from megatape.data.prepare.folder import PartialFolder
from megatape.data.prepare.options import PreparationOptions
from megatape.data.shards.entries import SPLITS
from megatape.data.shards.index import load_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.sources.source import Source
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from tests.helpers.data.data_directory import edit_index
from tests.helpers.data.preparation import NUM_FILES, UNIT_BYTES, text_of, write_lines
from tests.helpers.models.imported import write_llama2


@dataclass(frozen=True)
class LastDigit(ScoreRule):
    """Drops texts whose length ends with a small digit."""

    minimum: float = 0.2

    def score(self, text: str) -> float:
        return len(text) % 10 / 10


@dataclass(frozen=True)
class Shout(TextRule):
    """Changes some of the texts."""

    def apply(self, text: str) -> str:
        return text.upper() if text.count("1") % 2 else text


RULES = {"shout": Shout(), "last_digit": LastDigit(), **parse_rules(["near_duplicates"])}
KEEP_ALL = Cleaning(drop_duplicates=False)


@pytest.fixture(params=[UNIT_BYTES, 2**20])
def corpus(request: pytest.FixtureRequest, tmp_path: Path, tokenizer: Tokenizer) -> PreparationOptions:
    """Lines in many units, or in one: some bad, empty, equal or alike, scored, and changed by a rule."""
    source = replace(write_lines(tmp_path / "texts"), unit_bytes=request.param)
    near = [json.dumps({"text": text_of(3) + f" {number}", "url": f"http://{number}"}) for number in range(20)]
    (tmp_path / "texts" / "98.jsonl").write_text("\n".join(near) + "\n")
    return PreparationOptions(source, 0.1, tokenizer, 0, Cleaning(RULES))


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    files = sorted(folder.glob(f"{kind}-*.jsonl.zst"))
    return [record for file in files for _, record in read_records(str(file), 2**20, RecordCounts())]


def tree(folder: Path) -> dict[str, str]:
    """The hash of every file, by its path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def shards(folder: Path) -> dict[str, str]:
    return {name: found for name, found in tree(folder).items() if name.endswith((".tar", ".parquet"))}


def tokenized(folder: Path, output: Path, tokenizer: Tokenizer) -> Path:
    prepare(PreparationOptions(Source("documents", (str(folder),)), 0.1, tokenizer, 0, KEEP_ALL), output)
    return output


def test_kept_documents_prepare_to_the_same_data(
    corpus: PreparationOptions, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shards and tables of the first tokenizer and of another one, which no rule sees."""
    other = load_tokenizer(write_llama2(tmp_path / "llama2"))
    prepare(corpus, tmp_path / "whole")
    prepare(replace(corpus, tokenizer=other), tmp_path / "other")
    prepare(replace(corpus, keep_documents=True), tmp_path / "kept")
    assert shards(tmp_path / "kept") == shards(tmp_path / "whole")
    monkeypatch.setattr(Shout, "apply", None)
    monkeypatch.setattr(LastDigit, "score", None)
    for path in (tmp_path / "texts").iterdir():
        path.unlink()
    assert shards(tokenized(tmp_path / "kept", tmp_path / "again", tokenizer)) == shards(tmp_path / "whole")
    assert shards(tokenized(tmp_path / "kept", tmp_path / "new", other)) == shards(tmp_path / "other")
    index = load_index(tmp_path / "again")
    before = load_index(tmp_path / "whole")
    assert [index.fingerprint(split) for split in SPLITS] == [before.fingerprint(split) for split in SPLITS]
    cleaned = {"source": before.source, "rules": before.rules}
    assert index.source == {"kind": "documents", "inputs": [str(tmp_path / "kept")], "cleaned": [cleaned]}
    files = tuple(map(str, (tmp_path / "kept").glob("documents-*.jsonl.zst")))
    assert Source("documents", files).describe() == {"kind": "documents", "inputs": list(files), "cleaned": [cleaned]}
    document = StoredSplit(tmp_path / "again", "train").tables.document(0)
    assert document.place.endswith("texts/00.jsonl:1") and "last_digit" in json.loads(document.scores)


def test_no_document_is_missing(corpus: PreparationOptions, tmp_path: Path) -> None:
    """Each that was read is in one of the folders, with the reason that the ledger counts."""
    index, _ = prepare(replace(corpus, keep_documents=True), tmp_path / "kept")
    kept = records(tmp_path / "kept", "documents")
    dropped = records(tmp_path / "kept", "dropped")
    bad = index.counts.pop("bad records")
    assert index.counts.keys() == {"empty documents", "duplicates", "near_duplicates", "last_digit: below 0.2"}
    assert Counter(record["reason"] for record in dropped) == index.counts
    assert len(kept) == sum(split.documents for split in index.splits.values()) and not any(each["reason"] for each in kept)
    places = [record["place"] for record in kept + dropped]
    assert len(places) == len(set(places)) == 30 * NUM_FILES + 20 - bad
    by_place = {record["place"]: record for record in kept + dropped}
    for number in range(5):
        record = by_place[f"{tmp_path}/texts/00.jsonl:{number + 1}"]
        changed = Shout().apply(text_of(number))
        assert record["text"] == changed and record["scores"] == {"last_digit": len(changed) % 10 / 10}
        assert record["edited"] == (["shout"] if changed != text_of(number) else [])
    assert {record["url"] for record in kept + dropped} == {"", *(f"http://{number}" for number in range(20))}


@pytest.mark.parametrize("step", ["first pass", "write pass", "assembly"])
def test_interrupted_command_completes_the_documents(
    corpus: PreparationOptions, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It resumes, but not without its documents, and gives the same bytes."""
    corpus = replace(corpus, keep_documents=True)
    prepare(corpus, tmp_path / "whole")
    rename = Path.rename
    done = []

    def fail(self: Path, to: Path) -> None:
        where = {"first pass": "verdicts", "write pass": "units", "assembly": "final"}[step]
        done.extend([to] if to.parent.name == where and (step != "assembly" or to.suffix == ".zst") else [])
        if len(done) == 2 or (done and corpus.source.unit_bytes != UNIT_BYTES):
            raise OSError("the disk is full")
        rename(self, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        patch.setattr(PartialFolder, "remove", lambda self: None)
        if step == "first pass" and corpus.source.unit_bytes != UNIT_BYTES:
            pytest.skip("one unit is decided about while it is written")
        with pytest.raises(OSError, match="the disk is full"):
            prepare(corpus, tmp_path / "out")
    with pytest.raises(UserError, match=r"out.partial was begun with other keep_documents: True, now False. Give the same"):
        prepare(replace(corpus, keep_documents=False), tmp_path / "out")
    prepare(corpus, tmp_path / "out")
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_kept_documents_of_several_preparations_are_one_source(
    corpus: PreparationOptions, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    """Its documents follow, without those that the first source has; validation files stay in their split."""
    (tmp_path / "more.jsonl").write_text("\n".join(json.dumps({"text": text_of(number)}) for number in range(100, 500)))
    (tmp_path / "held.jsonl").write_text(json.dumps({"text": text_of(0)}))
    more = Source("jsonl", (str(tmp_path / "more.jsonl"),), validation=(str(tmp_path / "held.jsonl"),))
    prepare(replace(corpus, cleaning=Cleaning(), keep_documents=True), tmp_path / "a")
    prepare(PreparationOptions(more, 0.1, tokenizer, 0, keep_documents=True), tmp_path / "b")
    assert shards(tokenized(tmp_path / "b", tmp_path / "c", tokenizer)) == shards(tmp_path / "b")
    both = Source("documents", (str(tmp_path / "b"), str(tmp_path / "a")))
    index, _ = prepare(PreparationOptions(both, 0.1, tokenizer, 0), tmp_path / "both")
    shared = index.ledger[str(tmp_path / "a")].dropped["duplicates"]
    assert index.counts == {"duplicates": shared} and shared > 100
    assert StoredSplit(tmp_path / "both", "validation").tables.document(0).place == f"{tmp_path}/held.jsonl:1"


@pytest.mark.parametrize("options", [{"max_documents": 5}, {"validation": ("a",)}])
def test_held_out_documents_stay_held_out(corpus: PreparationOptions, tmp_path: Path, options: dict[str, Any]) -> None:
    """A first few documents, or other validation files, would leave them in the training split."""
    (tmp_path / "held.jsonl").write_text(json.dumps({"text": text_of(0)}))
    (tmp_path / "more.jsonl").write_text("\n".join(json.dumps({"text": text_of(number)}) for number in range(1, 20)))
    source = Source("jsonl", (str(tmp_path / "more.jsonl"),), validation=(str(tmp_path / "held.jsonl"),))
    prepare(replace(corpus, source=source, cleaning=Cleaning(), keep_documents=True), tmp_path / "kept")
    with pytest.raises(UserError, match=r"validation.jsonl.zst is held out: with max_documents or `validation_input`"):
        Source("documents", (str(tmp_path / "kept"),), **options).units()
    held = tuple(map(str, (tmp_path / "kept").glob("documents-*validation*")))
    training = tuple(str(path) for path in (tmp_path / "kept").glob("documents-*") if str(path) not in held)
    options = {"validation": held} if "validation" in options else options
    assert Source("documents", training, **options).units()


@pytest.mark.parametrize(
    "more, message",
    [
        ({}, r"input .*/other: no file named documents-\*.jsonl.zst in this directory"),
        ({"max_documents": 5}, r"max_documents: `source` documents takes one `input` with it, got 2: give one"),
    ],
)
def test_inputs_without_kept_documents_are_refused(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    inputs = tuple(str(tmp_path / name) for name in ("other", "none"))
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match=message):
        Source("documents", inputs, **more).units()


@pytest.fixture
def kept(corpus: PreparationOptions, tmp_path: Path) -> Path:
    """Prepare a folder with its documents, and another one next to it."""
    (tmp_path / "other.jsonl").write_text("".join(json.dumps({"text": text_of(number)}) + "\n" for number in range(900, 950)))
    other = replace(corpus, source=Source("jsonl", (str(tmp_path / "other.jsonl"),)), keep_documents=True)
    prepare(other, tmp_path / "other")
    prepare(replace(corpus, keep_documents=True), tmp_path / "kept")
    return tmp_path / "kept"


@pytest.mark.parametrize("earlier", [False, True])
def test_files_that_are_not_those_of_the_folder(
    kept: Path, tmp_path: Path, tokenizer: Tokenizer, earlier: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing file once lost a third of the documents with status 0, and a file of another run was read as the folder's."""
    if earlier:
        edit_index(kept, lambda content: content.pop("document_files"))
    files = sorted(kept.glob("documents-*.jsonl.zst"))
    whole = shards(tokenized(kept, tmp_path / "whole", tokenizer))
    warnings = [record for record in caplog.records if "was written by an earlier version" in record.getMessage()]
    assert len(warnings) == earlier
    foreign = tmp_path / "other" / "documents-00000.jsonl.zst"
    content = files[-1].read_bytes()

    def refused(message: str) -> None:
        with pytest.raises(UserError, match=message):
            tokenized(kept, tmp_path / "out", tokenizer)
        shutil.rmtree(tmp_path / "out.partial", ignore_errors=True)

    files[-1].unlink()
    if len(files) > 1:
        refused(f"{kept}: files of documents that its index.json lists are missing: {files[-1].name}. Copy them again")
        some = Source("documents", tuple(map(str, files[:-1])))
        index, _ = prepare(PreparationOptions(some, 0.1, tokenizer, 0, KEEP_ALL), tmp_path / "some")
        assert index.splits["train"].documents < load_index(tmp_path / "whole").splits["train"].documents
    shutil.copy(foreign, files[-1])
    refused(rf"{files[-1]}: .*, copy it again")
    files[-1].write_bytes(content)
    more = kept / "documents-00077.jsonl.zst"
    shutil.copy(foreign, more)
    refused(f"{more}: ")
    more.unlink()
    assert shards(tokenized(kept, tmp_path / "again", tokenizer)) == whole


def test_documents_of_a_merged_folder(kept: Path, tmp_path: Path) -> None:
    """The folder's files only have the documents of the first merged folder."""
    append([tmp_path / "other"], kept)
    with pytest.raises(UserError, match=f"{kept} was merged, so its files of documents have only a part"):
        Source("documents", (str(kept),)).units()
    merge([tmp_path / "other"], tmp_path / "copy")
    assert load_index(tmp_path / "other").document_files and not load_index(tmp_path / "copy").document_files
