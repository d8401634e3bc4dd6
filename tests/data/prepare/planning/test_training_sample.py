"""The sample for training a tokenizer: from all parts of a source, always the same, and reading a bounded part."""

import gzip
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from megatape.data.prepare.planning.training_sample import sample_texts
from megatape.data.sources.document import Decision, Document
from megatape.data.sources.source import Source
from megatape.errors import UserError
from tests.helpers.processes.command import Command

DOCUMENT_BYTES = 100


def write_files(folder: Path, *num_documents: int, compressed: bool = False) -> Source:
    """Write files with these numbers of documents. Each text starts with the numbers of its file and document."""
    folder.mkdir()
    for file, size in enumerate(num_documents):
        texts = [f"{file} {number} ".ljust(DOCUMENT_BYTES, "x") for number in range(size)]
        content = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        name = f"{file:03}.jsonl"
        if compressed:
            content = gzip.compress(content)
            name += ".gz"
        (folder / name).write_bytes(content)
    return Source("jsonl", (str(folder),))


def document_number(text: str) -> int:
    return int(text.split()[1])


def texts_by_file(texts: list[str], num_bytes: int) -> Counter[int]:
    """Count the texts from each file, checking that together they have about `num_bytes` bytes."""
    assert abs(len(texts) * DOCUMENT_BYTES - num_bytes) <= 10 * DOCUMENT_BYTES
    return Counter(int(text.split()[0]) for text in texts)


def test_every_file_gives_its_share(tmp_path: Path) -> None:
    """A source's first bytes may come from one site, one language or one month."""
    source = write_files(tmp_path / "texts", *[1000] * 8)

    texts = sample_texts(source, 40_000)

    counts = texts_by_file(texts, 40_000)
    assert len(counts) == 8
    assert set(counts.values()) <= {48, 49, 50, 51, 52}
    assert max(map(document_number, texts)) > 350, "only the first documents of a file were sampled"


def test_the_sample_is_always_the_same(tmp_path: Path) -> None:
    source = write_files(tmp_path / "texts", *[1000] * 8)
    source_in_units = Source("jsonl", source.inputs, unit_bytes=10**5)

    texts = sample_texts(source, 40_000)

    assert sample_texts(source, 40_000) == texts
    assert sample_texts(source_in_units, 40_000) == texts


@pytest.mark.parametrize("compressed", [False, True])
def test_short_files_leave_their_share_to_others(tmp_path: Path, compressed: bool) -> None:
    source = write_files(tmp_path / "texts", 1000, 10, 10, 1000, compressed=compressed)

    counts = texts_by_file(sample_texts(source, 80_000), 80_000)

    assert counts.keys() == {0, 1, 2, 3}
    assert counts[0] > 380
    assert counts[3] > 380


def test_all_texts_of_a_small_source_are_taken_in_order(tmp_path: Path) -> None:
    """The tokenizer must be the one trained on the whole text."""
    sizes = (30, 1, 50)
    source = write_files(tmp_path / "texts", *sizes)

    texts = sample_texts(source, 10**6)

    expected = []
    for file, size in enumerate(sizes):
        expected += [[str(file), str(number)] for number in range(size)]
    assert [text.split()[:2] for text in texts] == expected


@pytest.mark.parametrize("num_bytes", [1000, 5000])
def test_a_few_of_many_small_files_are_enough(tmp_path: Path, num_bytes: int) -> None:
    """The sampled files are spread over the source."""
    source = write_files(tmp_path / "texts", *[1] * 200)

    files = sorted(texts_by_file(sample_texts(source, num_bytes, max_files=10), num_bytes))

    steps = [last - first for first, last in pairwise(files)]
    assert max(steps) <= 2 * 200 * DOCUMENT_BYTES / num_bytes
    assert files[0] < 20
    assert files[-1] > 150


def test_more_files_are_opened_if_a_few_are_too_small(tmp_path: Path) -> None:
    source = write_files(tmp_path / "texts", *[1] * 200)

    assert len(sample_texts(source, 10**6, max_files=10)) == 200


def test_dropped_documents_are_not_sampled(tmp_path: Path) -> None:
    source = write_files(tmp_path / "texts", 100, 100)

    def keep_second_file(document: Document) -> Decision:
        if document.text.startswith("1"):
            return Decision(document.text, "first")
        return Decision(None, "first")

    texts = sample_texts(source, 10**6, keep_second_file)

    assert set(texts_by_file(texts, 10_000)) == {1}
    with pytest.raises(UserError, match="no documents found"):
        sample_texts(source, 1000, lambda document: Decision(None, "all"))


def test_documents_beyond_the_limit_of_the_source_are_not_sampled(tmp_path: Path) -> None:
    source = write_files(tmp_path / "texts", 100, 100)
    limited = Source("jsonl", source.inputs, max_documents=120)

    assert texts_by_file(sample_texts(limited, 10**6), 12_000) == {0: 100, 1: 20}


def test_the_command_takes_a_sample(tmp_path: Path, command: Command) -> None:
    """The vocabulary has a character only found in the last file."""
    source = write_files(tmp_path / "texts", 2000, 2000)
    line = json.dumps({"text": "\u00e9" * 100}) + "\n"
    (tmp_path / "texts/002.jsonl").write_text(line * 1000)
    model = tmp_path / "tok.model"
    words = ["data", "tokenizer", "--source", "jsonl", "--input", *source.inputs, "--vocab-size", "275"]

    status, printed, errors = command(*words, "--output", model, "--max-training-bytes", "90000")

    assert status == 0, errors
    assert "trained 275 tokens on 90,000 bytes of text" in printed
    assert "\u00e9".encode() in model.read_bytes()
