"""The folder of an unfinished preparation."""

import json
import tracemalloc
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatape.data.counts import CorpusCounts, DocumentCounts
from megatape.data.prepare import assembly
from megatape.data.prepare.command import prepare
from megatape.data.prepare.folder import PartialFolder
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.part_summary import SUMMARY, TOKEN_COUNTS, PartSummary
from megatape.data.prepare.unit_lease import DEFAULT_TIMEOUTS
from megatape.data.shards.entries import SPLITS, Split
from megatape.data.sources.source import Source
from megatape.data.sources.units import Unit
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import ExistingPath
from megatape.utils.json_files import MAX_JSON_BYTES


def test_plan_of_millions_of_files_is_read_back(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """It is larger than most JSON that is read, and was called corrupted by the command that had written it."""
    files = tuple(f"/data/{'folder/' * 10}{number:07d}.txt" for number in range(800_000))
    folder = PartialFolder(tmp_path / "out", DEFAULT_TIMEOUTS)
    plan = PreparationOptions(Source("text", ("/data",)), 0.2, tokenizer, 0).plan([Unit(files, 1)], tokenizer)
    folder.create()
    folder.store_plan(plan, tokenizer)
    assert (folder.path / "plan.json").stat().st_size > MAX_JSON_BYTES
    assert folder.plan() == plan


@pytest.mark.parametrize("name", ["units", "verdicts", "tokenizer", "final"])
def test_a_planted_link_is_not_followed(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    partial = tmp_path / "out.partial"
    elsewhere.mkdir()
    partial.mkdir()
    (partial / name).symlink_to(elsewhere)
    (tmp_path / "a.jsonl").write_text('{"text": "a document"}\n')
    with pytest.raises(ExistingPath, match=f"{partial}/{name} is a link, through which nothing is written"):
        prepare(PreparationOptions(Source("jsonl", (str(tmp_path / "a.jsonl"),)), 0.2, tokenizer, 0), tmp_path / "out")
    assert not list(elsewhere.iterdir())


def test_too_many_bad_records_of_all_units(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no unit has too many of may be too much in all: nothing that is finished is lost, and nothing is read again."""
    for number in range(3):
        lines = [json.dumps({"text": f"Document {100 * number + line}"}) for line in range(90)]
        lines[8:40:4] = ["{"] * 8
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    source = Source("jsonl", (str(tmp_path),), unit_bytes=2000)
    corpus = PreparationOptions(source, 0.2, tokenizer, 0)
    with pytest.raises(ValueError, match=rf"of 270 records 24 are bad .*; the first: {tmp_path}/0.jsonl:9: malformed JSON"):
        prepare(corpus, tmp_path / "out")
    units = sorted((tmp_path / "out.partial" / "units").iterdir())
    assert len(units) == len(source.units()) > 3
    monkeypatch.setattr("megatape.data.prepare.batches.read_unit", None)
    index, _ = prepare(replace(corpus, source=replace(source, max_bad_fraction=0.1)), tmp_path / "out")
    assert index.counts == {"bad records": 24}


def test_assembly_holds_one_unit_in_memory(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of a unit, not of units times tokens of the vocabulary, which were 38 GB for C4 as Parquet."""
    vocab_size = 100_000
    built = list[Any]()
    monkeypatch.setattr(assembly, "build_index", lambda *_, **parts: built.append(parts))
    part = Split(documents=1, tokens=1, text_bytes=1, unigram_entropy=0.0, shards=[])
    counts = CorpusCounts(inputs={"a": DocumentCounts(2, 2, 2, 2)})
    summary = json.dumps(asdict(PartSummary(dict.fromkeys(SPLITS, part), {name: [] for name in SPLITS}, counts)))

    def peak(num_units: int) -> int:
        folder = PartialFolder(tmp_path / f"{num_units}", DEFAULT_TIMEOUTS)
        folder.create()
        corpus = PreparationOptions(Source("jsonl", ("a",)), 0.1, tokenizer, 0)
        for number in range(num_units):
            folder.unit_folder(number).mkdir()
            (folder.unit_folder(number) / SUMMARY).write_text(summary)
            token_counts: Any = dict.fromkeys(SPLITS, np.full(vocab_size, number, np.int64))
            np.savez_compressed(folder.unit_folder(number) / TOKEN_COUNTS, **token_counts)
        folder.store_plan(plan := corpus.plan([Unit(("a",), 0)] * num_units, tokenizer), tokenizer)
        tracemalloc.start()
        assembly.assemble(folder, corpus.source, plan, lambda: None)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(2)  # imports
    assert peak(40) < 1.5 * peak(4)
    joined = replace(part, documents=40, tokens=40, text_bytes=40)
    for split in built[1]["splits"].values():
        assert split.unigram_entropy == pytest.approx(np.log(vocab_size))
        assert replace(split, unigram_entropy=0.0) == joined


def test_a_plan_of_many_units(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """It may be larger than other files of JSON, and is read again."""
    folder = PartialFolder(tmp_path / "out", DEFAULT_TIMEOUTS)
    folder.create()
    corpus = PreparationOptions(Source("jsonl", ("a",)), 0.1, tokenizer, 0)
    plan = corpus.plan([Unit((f"{number} {'x' * 2**19}",), 1) for number in range(130)], tokenizer)
    folder.store_plan(plan, tokenizer)
    assert (folder.path / "plan.json").stat().st_size > 64 * 2**20
    assert folder.plan() == plan


def test_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    """It has the name that an unfinished preparation would have, and may hold the input."""
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "a.jsonl").write_text(json.dumps({"text": "a text"}) + "\n")
    source = Source("jsonl", (str(tmp_path / "out.partial"),))
    with pytest.raises(ExistingPath, match="out.partial has a.jsonl, so it is no unfinished preparation: rename it"):
        prepare(PreparationOptions(source, 0.1, None, 300), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out.partial").iterdir()] == ["a.jsonl"]
