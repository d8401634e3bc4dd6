"""The folder of an unfinished preparation."""

import json
from pathlib import Path

import pytest

from megatape.data.prepare.command import prepare
from megatape.data.prepare.corpus import Corpus
from megatape.data.sources.source import Source
from megatape.data.tokenizers.tokenizer import Tokenizer


def test_too_many_bad_records_of_all_units(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no unit has too many of may be too much in all: nothing that is finished is lost, and nothing is read again."""
    monkeypatch.setattr("megatape.data.sources.units.UNIT_BYTES", 2000)
    for number in range(3):
        lines = [json.dumps({"text": f"Document {100 * number + line}"}) for line in range(90)]
        lines[8:40:4] = ["{"] * 8
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    source = Source("jsonl", (str(tmp_path),))
    corpus = Corpus(source, 0.2, tokenizer, 0)
    with pytest.raises(ValueError, match=rf"of 270 records 24 are bad .*; the first: {tmp_path}/0.jsonl:9: malformed JSON"):
        prepare(corpus, tmp_path / "out")
    units = sorted((tmp_path / "out.partial" / "units").iterdir())
    assert len(units) == len(source.units()) > 3
    monkeypatch.setattr("megatape.data.prepare.unit.read_unit", None)
    index, _ = prepare(Corpus(Source("jsonl", (str(tmp_path),), max_bad_fraction=0.1), 0.2, tokenizer, 0), tmp_path / "out")
    assert index.counts == {"bad records": 24}
