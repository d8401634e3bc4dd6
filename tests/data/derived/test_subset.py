"""A part of a data directory: the documents that meet all conditions, with their tokens, tables, ledger and source."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from megatape.data.shards.document_tables import DocumentMatch
from megatape.data.shards.entries import SPLITS
from megatape.data.shards.index import load_index
from megatape.data.shards.ledger import check_ledger
from megatape.data.shards.stored_split import StoredSplit
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
    """A data directory of several units, so with several tables: documents of several lengths, domains and scores."""
    texts = folder / "texts"
    texts.mkdir(exist_ok=True)
    for name in names:
        lines = [
            {"text": f"{name} {n} " + "the fox " * (n % 9), "url": f"https://www.{name}{n % 3}.org/{n}"} for n in range(90)
        ]
        (texts / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    source = Source("jsonl", tuple(f"{texts}/{name}.jsonl" for name in names), unit_bytes=4000)
    prepare(PreparationOptions(source, 0.3, tokenizer, 0, Cleaning(rules)), folder / f"{names[0]}_data")
    return folder / f"{names[0]}_data"


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    return write(tmp_path, tokenizer, "web", "books", rules={"last_digit": LastDigit()})


def documents_of(folder: Path, split: str) -> list[tuple[DocumentMatch, list[int]]]:
    stored = StoredSplit(folder, split)
    found = (stored.tables.document(number) for number in range(load_index(folder).splits[split].documents))
    return [(document, stored.stream(document.first, document.first + document.tokens).tolist()) for document in found]


def is_met(document: DocumentMatch, selection: dict[str, Any]) -> bool:
    """Whether a document meets the conditions, but for its share."""
    domain = document.url.removeprefix("https://www.").partition("/")[0]
    return (
        selection.get("min_tokens", 0) <= document.tokens <= selection.get("max_tokens", 10**9)
        and document.place.startswith(selection.get("place", ""))
        and domain in selection.get("domain", (domain,))
        and json.loads(document.scores)["last_digit"] >= selection.get("min_score", 0.0)
    )


@pytest.mark.parametrize(
    "conditions",
    [
        {},
        {"min_tokens": 20},
        {"max_tokens": 14},
        {"min_tokens": 15, "max_tokens": 15},
        {"domain": ("web1.org", "books0.org")},
        {"place": "TEXTS/web"},
        {"score": "last_digit", "min_score": 0.5},
        {"score": "last_digit", "min_score": 0.3, "domain": ("web1.org", "web2.org"), "place": "TEXTS/", "min_tokens": 12},
    ],
)
def test_subset_has_exactly_the_matching_documents(folder: Path, tmp_path: Path, conditions: dict[str, Any]) -> None:
    """Exactly those that meet all conditions, in order, with what the tables say of them."""
    if "place" in conditions:
        conditions = conditions | {"place": conditions["place"].replace("TEXTS", str(tmp_path / "texts"))}
    seen: list[int] = []
    index = subset(folder, tmp_path / "out", DocumentFilter(**conditions), seen.append, read_tokens=50)
    whole = load_index(folder)
    num_read = 0
    for split in SPLITS:
        everything = documents_of(folder, split)
        num_read += len(everything)
        expected = [(document, ids) for document, ids in everything if is_met(document, conditions)]
        found = documents_of(tmp_path / "out", split)
        assert [ids for _, ids in found] == [ids for _, ids in expected]
        assert 0 < len(found) and (len(found) < len(everything) or not conditions)
        for (mine, _), (its, _) in zip(found, expected, strict=True):
            assert vars(mine) | {"number": 0, "first": 0} == vars(its) | {"number": 0, "first": 0}
        content = index.splits[split]
        ids = read_all(tmp_path / "out", split)
        assert (content.documents, content.tokens) == (len(found), ids.size)
        assert content.text_bytes == sum(document.bytes for document, _ in found)
        assert content.unigram_entropy == pytest.approx(entropy(np.bincount(ids)))
        assert index.fingerprint(split) != whole.fingerprint(split), "a run would resume on other data"
    total = check_ledger(index)
    assert index == load_index(tmp_path / "out") and list(index.ledger) == [str(folder)]
    assert (total.read, total.dropped) == (num_read, {"subset": num_read - total.written})
    assert sum(seen) == total.tokens
    options = vars(DocumentFilter(**conditions)) | {"domain": list(conditions.get("domain", ()))}
    assert index.rules == [*whole.rules, {"rule": "subset", "options": options}]
    assert [(each.folder, each.fingerprint, each.rules) for each in index.merged] == [
        (str(folder), whole.fingerprint("train"), whole.rules)
    ]


def test_larger_share_contains_a_smaller_one(folder: Path, tmp_path: Path) -> None:
    """About as many of both splits; a larger share has the documents of a smaller one."""
    chosen: list[set[str]] = []
    for share in (0.3, 0.6, 1.0):
        index = subset(folder, tmp_path / f"{share}", DocumentFilter(share=share))
        places = [document.place for split in SPLITS for document, _ in documents_of(tmp_path / f"{share}", split)]
        for split in SPLITS:
            expected = share * load_index(folder).splits[split].documents
            assert abs(index.splits[split].documents - expected) < 4 * expected**0.5
        chosen.append(set(places))
    assert chosen[0] < chosen[1] < chosen[2] and len(chosen[2]) == 180
    subset(folder, tmp_path / "again", DocumentFilter(share=0.3))
    assert hashes_of(tmp_path / "again") == hashes_of(tmp_path / "0.3")


def test_subset_of_merged_folders_keeps_their_origins(folder: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A subset records the folders its source was merged from."""
    whole = load_index(folder)
    more = load_index(write(tmp_path, tokenizer, "code", rules={}))
    merge([folder, tmp_path / "code_data"], tmp_path / "all")
    index = subset(tmp_path / "all", tmp_path / "out", DocumentFilter(share=0.5))
    assert [each.fingerprint for each in index.merged] == [each.fingerprint("train") for each in (whole, more)]
    nested = subset(tmp_path / "out", tmp_path / "nested", DocumentFilter(max_tokens=14))
    assert nested.merged == index.merged and [rule["rule"] for rule in nested.rules] == ["subset", "subset"]


def test_disjoint_subsets_are_merged(folder: Path, tmp_path: Path) -> None:
    """Subsets of one folder are not the same data just because of their source. Subsets sharing a document are refused."""
    parts = {
        "short": DocumentFilter(max_tokens=14),
        "long": DocumentFilter(min_tokens=15),
        "middle": DocumentFilter(min_tokens=12),
    }
    for name, part in parts.items():
        subset(folder, tmp_path / name, part)
    short, long, middle = (tmp_path / name for name in parts)
    index = merge([short, long], tmp_path / "all")
    whole = load_index(folder)
    for split in SPLITS:
        assert index.splits[split].documents == whole.splits[split].documents
        assert np.array_equal(np.sort(read_all(tmp_path / "all", split)), np.sort(read_all(folder, split)))
    check_ledger(index)
    append([long], short)
    assert load_index(short).fingerprint("train") == index.fingerprint("train")
    for folders in ([short, middle], [tmp_path / "all", long], [tmp_path / "all", folder], [long, folder], [long, long]):
        with pytest.raises(UserError, match="has the same data as .*, or a part of them: give each folder once"):
            merge(folders, tmp_path / "out")


def test_impossible_conditions_are_refused(folder: Path, tmp_path: Path, command: Command) -> None:
    """They name what is wrong, and leave nothing."""
    prepare_addition(AdditionTask(digits=2, per_cell=20, seed=0), tmp_path / "addition", lambda tokens: None)
    for words, message in [
        (["--min-score", "0.5"], "--min-score 0.5 needs --score, the rule whose score it bounds"),
        (["--share", "50"], "--share: must be less than or equal to 1, got '50'"),
        (
            ["--min-tokens", "9999"],
            f"the train split got no document of {folder}, since none meets all conditions: select more",
        ),
        (
            ["--score", "quality"],
            f"split train of {folder}: its tables lack what --score or --share reads ('quality'): name another rule",
        ),
    ]:
        status, _, errors = command("data", "subset", folder, "--output", tmp_path / "out", *words)
        assert status == 2 and message in errors
    status, _, errors = command("data", "subset", tmp_path / "addition", "--output", tmp_path / "out")
    assert status == 2 and "has no tables of documents" in errors
    status, _, errors = command("data", "subset", folder, "--output", folder)
    assert status == 2 and "exists: remove it or choose another name" in errors
    flip(folder / load_index(folder).splits["train"].shards[0].file, 700)
    status, _, errors = command("data", "subset", folder, "--output", tmp_path / "out")
    assert status == 2 and "corrupted" in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["addition", "texts", "web_data"]


def test_command_writes_a_subset(folder: Path, tmp_path: Path, command: Command) -> None:
    words = ["--domain", "web0.org", "web1.org", "--min-tokens", "20", "--score", "last_digit", "--min-score", "0.2"]
    status, printed, errors = command("data", "subset", folder, "--output", tmp_path / "out", *words, "--share", "0.9")
    assert status == 0, errors
    index = load_index(tmp_path / "out")
    assert f"train: {index.splits['train'].documents} documents, " in printed
