"""The sample that a tokenizer is trained on: from all parts of a source, the same every time, bounded in what is read."""

import gzip
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from megatape.data.prepare.training_sample import sample_texts
from megatape.data.sources.document import Decision, Document
from megatape.data.sources.source import Source
from megatape.errors import UserError
from tests.helpers.processes.command import Command

SIZE = 100  # bytes of a document


def write(folder: Path, *sizes: int, packed: bool = False) -> Source:
    """Files with so many documents each, which begin with the number of the file and their own."""
    folder.mkdir()
    for file, size in enumerate(sizes):
        texts = [f"{file} {number} ".ljust(SIZE, "x") for number in range(size)]
        content = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        name = f"{file:03}.jsonl.gz" if packed else f"{file:03}.jsonl"
        (folder / name).write_bytes(gzip.compress(content) if packed else content)
    return Source("jsonl", (str(folder),))


def files(texts: list[str], num_bytes: int) -> Counter[int]:
    """The number of documents of each file, of texts of about a size."""
    assert abs(len(texts) * SIZE - num_bytes) <= 10 * SIZE
    return Counter(int(text.split()[0]) for text in texts)


def test_every_file_gives_its_share(tmp_path: Path) -> None:
    """The first bytes of a source may be of one site, one language or one month."""
    source = write(tmp_path / "texts", *[1000] * 8)
    texts = sample_texts(source, 40_000)
    assert set(files(texts, 40_000).values()) <= {48, 49, 50, 51, 52} and len(files(texts, 40_000)) == 8
    assert max(int(text.split()[1]) for text in texts) > 350  # not of the first documents alone
    assert texts == sample_texts(source, 40_000) == sample_texts(Source("jsonl", source.inputs, unit_bytes=10**5), 40_000)


@pytest.mark.parametrize("packed", [False, True])
def test_short_files_leave_their_share_to_others(tmp_path: Path, packed: bool) -> None:
    texts = sample_texts(write(tmp_path / "texts", 1000, 10, 10, 1000, packed=packed), 80_000)
    found = files(texts, 80_000)
    assert min(found[0], found[3]) > 380 and found.keys() == {0, 1, 2, 3}


def test_a_small_source_is_taken_whole(tmp_path: Path) -> None:
    """In its order, so that its tokenizer is the one of the whole text."""
    texts = sample_texts(write(tmp_path / "texts", 30, 1, 50), 10**6)
    assert [text.split()[:2] for text in texts] == [[str(f), str(n)] for f, size in enumerate((30, 1, 50)) for n in range(size)]


def test_many_small_files(tmp_path: Path) -> None:
    """A few of them suffice, from all over the source; more are opened only where they do not."""
    source = write(tmp_path / "texts", *[1] * 200)
    for size in (1000, 5000):
        found = sorted(files(sample_texts(source, size, max_files=10), size))
        steps = [last - first for first, last in pairwise(found)]
        assert max(steps) <= 2 * 200 * SIZE / size and found[0] < 20 and found[-1] > 150
    assert len(sample_texts(source, 10**6, max_files=10)) == 200


def test_what_is_dropped_or_beyond_a_limit_is_not_in_it(tmp_path: Path) -> None:
    source = write(tmp_path / "texts", 100, 100)

    def decide(document: Document) -> Decision:
        return Decision(document.text if document.text.startswith("1") else None, "first")

    assert set(files(sample_texts(source, 10**6, decide), 10_000)) == {1}
    limited = Source("jsonl", source.inputs, max_documents=120)
    assert files(sample_texts(limited, 10**6), 12_000) == {0: 100, 1: 20}
    with pytest.raises(UserError, match="no documents found"):
        sample_texts(source, 1000, lambda document: Decision(None, "all"))


def test_the_command_takes_a_sample(tmp_path: Path, command: Command) -> None:
    """A character of the last file is in the vocabulary."""
    source = write(tmp_path / "texts", 2000, 2000)
    last = tmp_path / "texts/002.jsonl"
    last.write_text("".join(json.dumps({"text": "\u00e9" * 100}) + "\n" for _ in range(1000)))
    words = ["data", "tokenizer", "--source", "jsonl", "--input", *source.inputs, "--vocab-size", "275"]
    words += ["--output", str(tmp_path / "tok.model"), "--max-training-bytes", "90000"]
    status, output, errors = command(*words)
    assert status == 0 and "trained 275 tokens on 90,000 bytes of text" in output, errors
    assert "\u00e9".encode() in (tmp_path / "tok.model").read_bytes()
