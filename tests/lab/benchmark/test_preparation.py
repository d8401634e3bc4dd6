"""megatape benchmark preparation: the compared data, and the message if they differ."""

from pathlib import Path

import numpy as np
import pytest

from megatape.data.sources.source import Source
from megatape.data.tokenizers.fast import FastTokenizer
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.lab.benchmark import preparation
from megatape.lab.benchmark.preparation import report


@pytest.fixture
def source(tmp_path: Path) -> Source:
    (tmp_path / "texts").mkdir()
    for number in range(40):
        (tmp_path / f"texts/{number}.txt").write_text(f"A text of {number} words that says nothing {number}. " * 20)
    return Source("text", (str(tmp_path / "texts"),))


def test_text_is_the_beginning_of_the_source(source: Source) -> None:
    texts = preparation.first_texts(source, 20_000)
    assert 20_000 <= sum(map(len, texts)) < 22_000
    assert texts == preparation.first_texts(source, 10**9)[: len(texts)]


def test_report_compares_the_data(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    summary, table, start = report(source, None, 300, 1, 1)
    assert "40 documents, 300 tokens" in summary
    assert summary.endswith("the data are the same to the byte")
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == [
        "SentencePiece alone",
        "preparation with SentencePiece",
        "loop with gigatoken",
        "preparation with gigatoken",
    ]
    assert float(start.split()[1]) < 30
    assert start.endswith("processor seconds of a command that prepares ten short documents")
    encode = FastTokenizer.encode_documents

    def other(self: FastTokenizer, contents: list[bytes]) -> list[np.ndarray]:
        return [ids[:-2] for ids in encode(self, contents)]

    monkeypatch.setattr(FastTokenizer, "encode_documents", other)
    summary = next(report(source, None, 300, 1, 1))
    assert summary.endswith("the data are NOT the same to the byte")


def test_loop_writes_the_same_tokens(source: Source, tmp_path: Path) -> None:
    """Each distinct document is written once."""
    texts = [*preparation.first_texts(source, 20_000), *preparation.first_texts(source, 100)]
    tokenizer = SentencePieceTokenizer(train_tokenizer(texts, 300))
    paths = [unit.inputs[0] for unit in preparation.write_units(texts, tmp_path)]
    preparation.loop(paths, FastTokenizer(tokenizer), tmp_path / "out")
    kept = dict.fromkeys(text for number in range(preparation.FILES) for text in texts[number :: preparation.FILES])
    found = np.fromfile(tmp_path / "out/tokens.bin", np.uint16)
    assert len(kept) < len(texts)
    assert np.array_equal(found, np.concatenate(tokenizer.encode_documents([*kept])))
