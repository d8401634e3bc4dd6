"""Finding near duplicates of documents in other data directories, by one process and by several."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megatape.commands.cli.main import main
from megatape.data.cleaning.decisions import Cleaning, OnePass
from megatape.data.cleaning.rule import parse_rules
from megatape.data.counts import CorpusCounts
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.passes.reference_pass import ReferencePass
from megatape.data.prepare.preparation import open_preparation
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.unit_lease import DEFAULT_TIMEOUTS
from megatape.data.prepare.status import preparation_status
from megatape.data.sources.document import Document
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import Source
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError

RULE = "near_duplicates:words=2"
NUM_TEXTS = 60
NUM_WORDS = 40


def altered(text: str, draw: np.random.Generator) -> str:
    """Replace a word, making the similarity by two-word runs 0.9."""
    words = text.split()
    words[draw.integers(NUM_WORDS)] = "altered"
    return " ".join(words)


@pytest.fixture(scope="module")
def first_texts() -> list[str]:
    draw = np.random.default_rng(0)
    return [" ".join(f"w{word}" for word in draw.integers(0, 1000, NUM_WORDS)) for _ in range(NUM_TEXTS)]


@pytest.fixture(scope="module")
def later_texts(first_texts: list[str]) -> list[str]:
    """Return copies and altered copies of earlier texts and of texts resembling these, and new texts."""
    draw = np.random.default_rng(1)
    texts: list[str] = []
    for number in range(NUM_TEXTS):
        pool = first_texts + texts
        text = pool[draw.integers(len(pool))]
        if number % 3 == 0:
            text = " ".join(f"v{word}" for word in draw.integers(0, 1000, NUM_WORDS))
        elif number % 3 == 1:
            text = altered(text, draw)
        texts.append(text)
    return texts


def write_texts(path: Path, texts: Sequence[str]) -> Source:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return Source("jsonl", (str(path),))


def with_rule(options: PreparationOptions, *folders: Path) -> PreparationOptions:
    names = ",".join(map(str, folders))
    return replace(options, cleaning=Cleaning(parse_rules([f"{RULE},folders={names}"])))


@pytest.fixture
def kept(tmp_path: Path, tokenizer: Tokenizer, first_texts: list[str]) -> list[Path]:
    """Prepare two data directories keeping documents, each with several units."""
    folders = []
    for name, texts in (("a", first_texts[:35]), ("b", first_texts[35:])):
        source = replace(write_texts(tmp_path / f"{name}.jsonl", texts), unit_bytes=3000)
        folder = tmp_path / name
        prepare(PreparationOptions(source, 0.1, tokenizer, 0, keep_documents=True), folder)
        folders.append(folder)
    return folders


@pytest.fixture
def later(tmp_path: Path, tokenizer: Tokenizer, later_texts: list[str]) -> PreparationOptions:
    return PreparationOptions(write_texts(tmp_path / "later.jsonl", later_texts), 0.1, tokenizer, 0)


def expected_texts(first_texts: list[str], later_texts: list[str]) -> list[str]:
    """Return the later texts kept by one process after the first ones."""
    decide = OnePass(Cleaning(parse_rules([RULE]))).decide
    assert all(decide(Document(text, "a:1")).text is not None for text in first_texts)
    return [text for text in later_texts if decide(Document(text, "a:1")).text is not None]


@pytest.mark.parametrize(("num_workers", "unit_bytes"), [(1, None), (1, 2000), pytest.param(3, 2000, marks=pytest.mark.slow)])
def test_documents_similar_to_those_of_other_folders_are_dropped(
    kept: list[Path],
    later: PreparationOptions,
    first_texts: list[str],
    later_texts: list[str],
    tmp_path: Path,
    num_workers: int,
    unit_bytes: int | None,
) -> None:
    """One unit takes two passes as well. The result equals that of one process reading both folders first."""
    source = replace(later.source, unit_bytes=unit_bytes)
    options = replace(with_rule(later, *kept), source=source, keep_documents=True)

    index, _ = prepare(options, tmp_path / "out", workers=num_workers)

    expected = expected_texts(first_texts, later_texts)
    documents = read_documents(Source("documents", (str(tmp_path / "out"),)), CorpusCounts())
    assert [document.text for document in documents] == expected
    assert index.counts["duplicates"] + index.counts["near_duplicates"] == NUM_TEXTS - len(expected)
    # Near duplicates of the folders' documents, and of documents in this preparation
    assert index.counts["near_duplicates"] > 20
    (entry,) = index.rules
    assert set(entry["sha256"]) == {str(folder) for folder in kept}


def test_two_passes_are_announced_for_one_unit(kept: list[Path], later: PreparationOptions, tmp_path: Path) -> None:
    folder = PartialFolder(tmp_path / "out", DEFAULT_TIMEOUTS)
    with open_preparation(with_rule(later, kept[0]), folder):
        assert len(preparation_status(tmp_path / "out").passes) == 2


def test_a_result_is_not_made_again(kept: list[Path], later: PreparationOptions, tmp_path: Path) -> None:
    """A process is killed in its second unit. The next one finds the first unit."""
    near = with_rule(later, *kept).cleaning.near_duplicates
    assert near is not None
    assert near.reference_source is not None
    folder = PartialFolder(tmp_path / "out", DEFAULT_TIMEOUTS)
    folder.create()
    step = ReferencePass(near, near.reference_source.units(), folder).step()
    with folder.leases.hold(step.lease_name(0)) as lease:
        assert lease is not None
        step.work(0, lease)

    assert step.count > 2
    assert step.done() == {0}
    assert step.is_done(0)
    assert not step.is_done(1)


def test_folders_without_kept_documents_are_refused(later: PreparationOptions, tmp_path: Path) -> None:
    prepare(later, tmp_path / "plain")

    with pytest.raises(UserError, match="near_duplicates: .*plain has no kept documents: prepare it with"):
        with_rule(later, tmp_path / "plain")


def test_a_damaged_file_of_another_folder_is_named(kept: list[Path], later: PreparationOptions, tmp_path: Path) -> None:
    options = with_rule(later, kept[0])
    path = sorted(kept[0].glob("documents-*"))[1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    with pytest.raises(UserError, match=f"{path.name}: sha256 is "):
        prepare(options, tmp_path / "out")


def test_folders_do_not_fit_a_number_of_documents(kept: list[Path], later: PreparationOptions) -> None:
    with pytest.raises(UserError, match="max_documents.*near_duplicates.*remove one of the two"):
        replace(with_rule(later, kept[0]), source=replace(later.source, max_documents=3))


def test_a_dry_run_says_what_it_leaves_out(
    kept: list[Path], later: PreparationOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["prepare", "corpus", "--source", "jsonl", "--input", *later.source.inputs]
    assert main([*words, "--rule", f"{RULE},folders={kept[0]}", "--dry-run"]) == 0

    assert "near_duplicates: documents of folders are not read in a dry run" in capsys.readouterr().out
