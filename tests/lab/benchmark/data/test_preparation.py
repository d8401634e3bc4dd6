"""megatape benchmark preparation: the compared data, and the message if they differ."""

from pathlib import Path

import numpy as np
import pytest

from megatape.data.sources.source import Source
from megatape.data.tokenizers.fast import FastTokenizer
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.data.tokenizers.tokenizer import EncodedDocuments
from megatape.lab.benchmark.data import preparation
from megatape.lab.benchmark.data.preparation import report
from tests.helpers.checks.cells import cells


@pytest.fixture
def source(tmp_path: Path) -> Source:
    (tmp_path / "texts").mkdir()
    for number in range(40):
        (tmp_path / f"texts/{number}.txt").write_text(f"A text of {number} words that says nothing {number}. " * 20)
    return Source("text", (str(tmp_path / "texts"),))


def test_text_is_the_beginning_of_the_source(source: Source) -> None:
    texts = preparation.first_texts(source, 20_000)

    num_characters = sum(len(text) for text in texts)
    assert 20_000 <= num_characters < 22_000
    assert texts == preparation.first_texts(source, 10**9)[: len(texts)]


def test_report_compares_ways_of_preparation(source: Source) -> None:
    summary, table, start = report(source, None, 300, 1, 1)

    assert "40 documents, 300 tokens" in summary
    assert summary.endswith("the data are the same to the byte")
    assert [cells(line)[0] for line in table.splitlines()[2:]] == [
        "SentencePiece alone",
        "preparation with SentencePiece",
        "preparation of text files with SentencePiece",
        "loop with gigatoken",
        "preparation with gigatoken",
    ]
    assert float(start.split()[1]) < 30
    assert start.endswith("processor seconds of a command that prepares ten short documents")


def test_report_says_so_if_the_data_differ(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = FastTokenizer.encode_documents

    def encode_other_ids(self: FastTokenizer, contents: list[bytes]) -> EncodedDocuments:
        documents = encode(self, contents)
        return documents._replace(ids=documents.ids[::-1])

    monkeypatch.setattr(FastTokenizer, "encode_documents", encode_other_ids)

    summary = report(source, None, 300, 1, 1)[0]

    assert summary.endswith("the data are NOT the same to the byte")


def test_loop_writes_each_distinct_document_once(source: Source, tmp_path: Path) -> None:
    """Documents are distributed over files in turn, and each file is written after the other."""
    texts = [*preparation.first_texts(source, 20_000), *preparation.first_texts(source, 100)]
    tokenizer = SentencePieceTokenizer(train_tokenizer(texts, 300))
    paths = preparation.write_files(texts, tmp_path)
    distinct_texts: dict[str, None] = {}
    for number in range(preparation.FILES):
        distinct_texts |= dict.fromkeys(texts[number :: preparation.FILES])
    assert len(distinct_texts) < len(texts)
    expected = np.concatenate(tokenizer.encode_documents([*distinct_texts]))

    preparation.loop(paths, FastTokenizer(tokenizer), tmp_path / "out")

    assert np.array_equal(np.fromfile(tmp_path / "out/tokens.bin", np.uint16), expected)
