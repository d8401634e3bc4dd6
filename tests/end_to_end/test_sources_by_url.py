"""Every kind of source by URL, from servers that fail, to a data directory."""

import gzip
import random
from pathlib import Path

import pytest
from backports import zstd

from megatape.data.counts import CorpusCounts
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import Source
from megatape.data.tokenizers.tokenizer import Tokenizer
from tests.helpers.data.data_directory import small_tokenizer
from tests.helpers.data.sources import read, tar_of, text_lines, write_parquet
from tests.helpers.processes.web import Fault, served

TEXTS = [f"Document {number} ✓\n" + "the fox " * (number % 5) for number in range(50)]


@pytest.fixture
def tokenizer() -> Tokenizer:
    return small_tokenizer()


@pytest.mark.slow
def test_a_server_that_fails_again_and_again(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Whichever way it fails, the shards are those of local files."""
    folder = tmp_path / "c4"
    folder.mkdir()
    draw = random.Random(0)
    with served() as web:
        for number in range(4):
            texts = [f"{line} " + draw.randbytes(200).hex() for line in range(number * 100, number * 100 + 100)]
            name = f"c4-train.{number:05}-of-00004.json.gz"
            content = gzip.compress(text_lines(texts))
            (folder / name).write_bytes(content)
            web.files[name] = content
        faults = [
            Fault(status=503),
            Fault(after=9000, then="reset"),
            Fault(after=9000, then="end"),
            Fault(ranges=False),
            Fault(),
        ]
        web.faults = [Fault(), *draw.choices(faults, k=7)]
        remote = Source("c4", (web.address + "/",), unit_bytes=20_000)
        prepare(PreparationOptions(remote, 0.2, tokenizer, 0), tmp_path / "remote")
        assert web.faults == []
    local = Source("c4", (str(folder),), unit_bytes=20_000)
    prepare(PreparationOptions(local, 0.2, tokenizer, 0), tmp_path / "local")

    shards = sorted((tmp_path / "local").glob("*.tar"))
    assert len(shards) == 8
    for shard in shards:
        assert (tmp_path / "remote" / shard.name).read_bytes() == shard.read_bytes(), shard.name


FILES_OF_KINDS = {
    "jsonl": ["a.jsonl", "b.jsonl.zst"],
    "parquet": ["a.parquet"],
    "webdataset": ["a.tar"],
    "text": ["a.txt"],
    "code": ["a.py"],
}


def test_every_kind_gives_the_same_by_url(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """The server fails once, which costs a second."""
    lines = text_lines(TEXTS)
    write_parquet(tmp_path / "a.parquet", list(TEXTS))
    files = {
        "a.jsonl": lines,
        "b.jsonl.zst": zstd.compress(lines),
        "a.parquet": (tmp_path / "a.parquet").read_bytes(),
        "a.tar": tar_of(*((f"{number}.txt", text.encode()) for number, text in enumerate(TEXTS))),
        "a.txt": lines,
        "a.py": lines,
    }
    with served() as web:
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
            web.files[f"c4/{name}"] = content
        for kind, names in FILES_OF_KINDS.items():
            if kind == "parquet":
                web.faults = [Fault(after=1000, then="end")]
            local_texts = read(kind, *(tmp_path / name for name in names))[0]
            source = Source(kind, tuple(web.url(f"c4/{name}") for name in names))
            texts = [document.text for document in read_documents(source, CorpusCounts())]
            assert texts == local_texts, kind
            assert web.faults == []

        source = Source("jsonl", (web.url("c4/{a.jsonl,b.jsonl.zst}"),))
        index, counts = prepare(PreparationOptions(source, 0.2, tokenizer, 0), tmp_path / "out")
        assert counts is not None
        assert counts.total.dropped == {"duplicates": 50}
        assert list(index.ledger) == list(source.inputs)
