"""Subsets of a data directory: the documents meeting all conditions, with their tokens, tables, ledger and source."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import Rule, ScoreRule
from megatape.data.derived.append import append
from megatape.data.derived.document_filter import DocumentFilter
from megatape.data.derived.merge import merge
from megatape.data.derived.subset import subset
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.shards.entries import SPLITS
from megatape.data.shards.index import load_index
from megatape.data.shards.ledger import check_ledger
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.shards.tables.document_tables import DocumentMatch
from megatape.data.shards.writer import entropy
from megatape.data.sources.source import Source
from megatape.data.synthetic.addition_problems import AdditionTask, prepare_addition
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from tests.helpers.data.data_directory import flip, hashes_of, read_all
from tests.helpers.processes.command import Command


@dataclass(frozen=True)
class LastDigit(ScoreRule):
    minimum: float = 0.0

    def score(self, text: str) -> float:
        return len(text) % 10 / 10


def write(folder: Path, tokenizer: Tokenizer, *names: str, rules: Mapping[str, Rule]) -> Path:
    """Prepare a data directory with several units, so with several tables. Documents differ in length, domain and score."""
    texts = folder / "texts"
    texts.mkdir(exist_ok=True)
    inputs = []
    for name in names:
        path = texts / f"{name}.jsonl"
        path.write_text("\n".join(json.dumps(record) for record in records_of(name)))
        inputs.append(str(path))
    output = folder / f"{names[0]}_data"
    source = Source("jsonl", tuple(inputs), unit_bytes=4000)
    prepare(PreparationOptions(source, 0.3, tokenizer, 0, Cleaning(rules)), output)
    return output


def records_of(name: str) -> Iterator[dict[str, str]]:
    for number in range(90):
        yield {
            "text": f"{name} {number} " + "the fox " * (number % 9),
            "url": f"https://www.{name}{number % 3}.org/{number}",
        }


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    return write(tmp_path, tokenizer, "web", "books", rules={"last_digit": LastDigit()})


class StoredDocument(NamedTuple):
    """A document in a data directory, with its token ids."""

    entry: DocumentMatch
    ids: list[int]


def documents_of(folder: Path, split: str) -> list[StoredDocument]:
    stored = StoredSplit(folder, split)
    documents = []
    for number in range(load_index(folder).splits[split].documents):
        entry = stored.tables.document(number)
        ids = stored.stream(entry.first, entry.first + entry.tokens)
        documents.append(StoredDocument(entry, ids.tolist()))
    return documents


def description(entry: DocumentMatch) -> dict[str, Any]:
    """Return what a table says about a document, except for its position."""
    return vars(entry) | {"number": 0, "first": 0}


def is_selected(entry: DocumentMatch, conditions: dict[str, Any]) -> bool:
    """Whether a document meets the conditions. Written independently of DocumentFilter."""
    domain = entry.url.removeprefix("https://www.").partition("/")[0]
    if not conditions.get("min_tokens", 0) <= entry.tokens <= conditions.get("max_tokens", 10**9):
        return False
    if not entry.location.startswith(conditions.get("place", "")):
        return False
    if domain not in conditions.get("domain", (domain,)):
        return False
    return bool(json.loads(entry.scores)["last_digit"] >= conditions.get("min_score", 0.0))


CONDITIONS: list[dict[str, Any]] = [
    {},
    {"min_tokens": 20},
    {"max_tokens": 14},
    {"min_tokens": 15, "max_tokens": 15},
    {"domain": ("web1.org", "books0.org")},
    {"place": "TEXTS/web"},
    {"score": "last_digit", "min_score": 0.5},
    {"score": "last_digit", "min_score": 0.3, "domain": ("web1.org", "web2.org"), "place": "TEXTS/", "min_tokens": 12},
]


@pytest.fixture(params=CONDITIONS, ids=lambda conditions: " ".join(conditions) or "all")
def conditions(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Conditions for a subset. TEXTS in a location stands for the folder with the texts."""
    conditions = dict(request.param)
    if "place" in conditions:
        conditions["place"] = conditions["place"].replace("TEXTS", str(tmp_path / "texts"))
    return conditions


def test_subset_has_exactly_the_matching_documents(folder: Path, tmp_path: Path, conditions: dict[str, Any]) -> None:
    """Documents stay in order, with the same entries in the tables."""
    index = subset(folder, tmp_path / "out", DocumentFilter(**conditions), lambda tokens: None, read_tokens=50)

    for split in SPLITS:
        all_documents = documents_of(folder, split)
        expected = [document for document in all_documents if is_selected(document.entry, conditions)]
        documents = documents_of(tmp_path / "out", split)
        assert [document.ids for document in documents] == [document.ids for document in expected]
        assert [description(document.entry) for document in documents] == [description(document.entry) for document in expected]
        assert documents != []
        if conditions:
            assert len(documents) < len(all_documents)

        entry = index.splits[split]
        ids = read_all(tmp_path / "out", split)
        assert entry.documents == len(documents)
        assert entry.tokens == ids.size
        assert entry.text_bytes == sum(document.entry.bytes for document in documents)
        assert entry.unigram_entropy == pytest.approx(entropy(np.bincount(ids)))


def test_subset_records_its_source_and_conditions(folder: Path, tmp_path: Path, conditions: dict[str, Any]) -> None:
    source = load_index(folder)
    num_documents = sum(split.documents for split in source.splits.values())
    progress: list[int] = []

    index = subset(folder, tmp_path / "out", DocumentFilter(**conditions), progress.append, read_tokens=50)

    assert index == load_index(tmp_path / "out")
    for split in SPLITS:
        assert index.fingerprint(split) != source.fingerprint(split), "a run would resume on other data"
    assert list(index.ledger) == [str(folder)]
    total = check_ledger(index)
    assert total.read == num_documents
    assert total.dropped == {"subset": num_documents - total.written}
    assert sum(progress) == total.tokens
    options = vars(DocumentFilter(**conditions)) | {"domain": list(conditions.get("domain", ()))}
    assert index.rules == [*source.rules, {"rule": "subset", "options": options}]
    (origin,) = index.merged
    assert origin.folder == str(folder)
    assert origin.fingerprint == source.fingerprint("train")
    assert origin.rules == source.rules


@pytest.mark.parametrize("share", [0.3, 0.6, 1.0])
def test_a_share_of_both_splits_is_taken(folder: Path, tmp_path: Path, share: float) -> None:
    index = subset(folder, tmp_path / "out", DocumentFilter(share=share))

    for split in SPLITS:
        expected = share * load_index(folder).splits[split].documents
        assert abs(index.splits[split].documents - expected) < 4 * expected**0.5


def test_larger_share_contains_a_smaller_one(folder: Path, tmp_path: Path) -> None:
    locations: dict[float, set[str]] = {}
    for share in (0.3, 0.6, 1.0):
        output = tmp_path / f"{share}"
        subset(folder, output, DocumentFilter(share=share))
        documents = documents_of(output, "train") + documents_of(output, "validation")
        locations[share] = {document.entry.location for document in documents}

    assert locations[0.3] < locations[0.6] < locations[1.0]
    assert len(locations[1.0]) == 180


def test_the_same_share_has_the_same_documents(folder: Path, tmp_path: Path) -> None:
    subset(folder, tmp_path / "first", DocumentFilter(share=0.3))
    subset(folder, tmp_path / "second", DocumentFilter(share=0.3))

    assert hashes_of(tmp_path / "second") == hashes_of(tmp_path / "first")


def test_subset_of_merged_folders_keeps_their_origins(folder: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A subset, and a subset of a subset, record the folders merged into their source."""
    another = write(tmp_path, tokenizer, "code", rules={})
    fingerprints = [load_index(part).fingerprint("train") for part in (folder, another)]
    merge([folder, another], tmp_path / "all")

    index = subset(tmp_path / "all", tmp_path / "out", DocumentFilter(share=0.5))
    nested = subset(tmp_path / "out", tmp_path / "nested", DocumentFilter(max_tokens=14))

    assert [origin.fingerprint for origin in index.merged] == fingerprints
    assert nested.merged == index.merged
    assert [rule["rule"] for rule in nested.rules] == ["subset", "subset"]


def test_disjoint_subsets_are_merged(folder: Path, tmp_path: Path) -> None:
    """Disjoint subsets are different data although they share their source."""
    short = tmp_path / "short"
    long = tmp_path / "long"
    subset(folder, short, DocumentFilter(max_tokens=14))
    subset(folder, long, DocumentFilter(min_tokens=15))
    source = load_index(folder)

    index = merge([short, long], tmp_path / "all")

    check_ledger(index)
    for split in SPLITS:
        assert index.splits[split].documents == source.splits[split].documents
        assert np.array_equal(np.sort(read_all(tmp_path / "all", split)), np.sort(read_all(folder, split)))
    append([long], short)
    assert load_index(short).fingerprint("train") == index.fingerprint("train")


def test_subsets_that_share_a_document_are_not_merged(folder: Path, tmp_path: Path) -> None:
    subset(folder, tmp_path / "short", DocumentFilter(max_tokens=14))
    subset(folder, tmp_path / "long", DocumentFilter(min_tokens=15))
    subset(folder, tmp_path / "middle", DocumentFilter(min_tokens=12))
    merge([tmp_path / "short", tmp_path / "long"], tmp_path / "all")
    append([tmp_path / "long"], tmp_path / "short")

    pairs = [("short", "middle"), ("all", "long"), ("all", folder.name), ("long", folder.name), ("long", "long")]
    for names in pairs:
        folders = [tmp_path / name for name in names]
        with pytest.raises(UserError, match="has the same data as .*, or a part of them: give each folder once"):
            merge(folders, tmp_path / "out")


def check_subset_fails(command: Command, folder: Path, output: Path, *words: str, message: str) -> None:
    status, _, errors = command("data", "subset", folder, "--output", output, *words)
    assert status == 2
    assert message in errors


def test_impossible_conditions_are_refused(folder: Path, tmp_path: Path, command: Command) -> None:
    """The errors name the option, and nothing is written."""
    output = tmp_path / "out"
    messages_by_option = {
        ("--min-score", "0.5"): "--min-score 0.5 needs --score, the rule whose score it bounds",
        ("--share", "50"): "--share: must be less than or equal to 1, got '50'",
        ("--min-tokens", "9999"): (
            f"the train split got no document of {folder}, since none meets all conditions: select more"
        ),
        ("--score", "quality"): (
            f"split train of {folder}: its tables lack what --score or --share reads ('quality'): name another rule"
        ),
    }

    for words, message in messages_by_option.items():
        check_subset_fails(command, folder, output, *words, message=message)

    assert not output.exists()


def test_impossible_folders_are_refused(folder: Path, tmp_path: Path, command: Command) -> None:
    """Imported data, an existing output and a corrupted shard are named, and nothing is written."""
    addition = tmp_path / "addition"
    output = tmp_path / "out"
    prepare_addition(AdditionTask(digits=2, per_cell=20, seed=0), addition, lambda tokens: None)

    check_subset_fails(command, addition, output, message="has no tables of documents")
    check_subset_fails(command, folder, folder, message="exists: remove it or choose another name")
    flip(folder / load_index(folder).splits["train"].shards[0].file, 700)
    check_subset_fails(command, folder, output, message="corrupted")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["addition", "texts", "web_data"]


def test_command_writes_a_subset(folder: Path, tmp_path: Path, command: Command) -> None:
    words = ["--domain", "web0.org", "web1.org", "--min-tokens", "20", "--score", "last_digit", "--min-score", "0.2"]

    status, printed, errors = command("data", "subset", folder, "--output", tmp_path / "out", *words, "--share", "0.9")

    assert status == 0, errors
    index = load_index(tmp_path / "out")
    assert f"train: {index.splits['train'].documents} documents, " in printed
