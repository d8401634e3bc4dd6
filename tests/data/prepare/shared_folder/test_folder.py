"""The folder during a preparation."""

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
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.part_summary import SUMMARY, TOKEN_COUNTS, PartSummary
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.unit_lease import DEFAULT_TIMEOUTS
from megatape.data.shards.entries import SPLITS, Split
from megatape.data.sources.source import Source
from megatape.data.sources.units import Unit
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import ExistingPath, UserError
from tests.helpers.data.data_directory import flip


def created_folder(output: Path) -> PartialFolder:
    folder = PartialFolder(output, DEFAULT_TIMEOUTS)
    folder.create()
    return folder


def test_plan_of_many_files_is_read_back(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A unit with many files exceeds the usual size limit for JSON files, and was once reported as corrupted."""
    files = tuple(f"/data/{'folder/' * 100}{number:06d}.txt" for number in range(100_000))
    options = PreparationOptions(Source("text", ("/data",)), 0.2, tokenizer, 0)
    plan = options.plan([Unit(files, 1)], tokenizer)
    folder = created_folder(tmp_path / "out")

    folder.store_plan(plan, tokenizer)

    stored = folder.plan()
    assert stored is not None
    assert stored.units[0] == plan.units[0]
    assert replace(stored, units=[]) == replace(plan, units=[])


def test_units_of_a_plan_are_read_one_at_a_time(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Reading all of them took 6 seconds per process for 700,000 units."""
    units = [Unit((f"{number} \n {'x' * 2**10}",), number, versions=("1",)) for number in range(5000)]
    plan = PreparationOptions(Source("jsonl", ("a",)), 0.1, tokenizer, 0).plan(units, tokenizer)
    folder = created_folder(tmp_path / "out")

    folder.store_plan(plan, tokenizer)

    stored = folder.plan()
    assert stored is not None
    assert len(stored.units) == 5000
    assert stored.units[4321] == units[4321]
    assert stored.units[-2:] == units[-2:]
    assert list(stored.units) == units


def test_damaged_units_of_a_plan_are_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    plan = PreparationOptions(Source("jsonl", ("a",)), 0.1, tokenizer, 0).plan([Unit(("a",), 1)], tokenizer)
    folder = created_folder(tmp_path / "out")
    folder.store_plan(plan, tokenizer)
    (path,) = folder.path.glob("units-*.jsonl")
    flip(path, 3)

    with pytest.raises(UserError, match=f"{path}: corrupted .*its content is not what was written.*: remove {folder.path}"):
        folder.plan()


@pytest.mark.parametrize("name", ["units", "verdicts", "compared", "tokenizer", "final"])
def test_a_planted_link_is_not_followed(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    link_target = tmp_path / "elsewhere"
    partial = tmp_path / "out.partial"
    link_target.mkdir()
    partial.mkdir()
    (partial / name).symlink_to(link_target)
    input_file = tmp_path / "a.jsonl"
    input_file.write_text('{"text": "a document"}\n')
    options = PreparationOptions(Source("jsonl", (str(input_file),)), 0.2, tokenizer, 0)

    with pytest.raises(ExistingPath, match=f"{partial}/{name} is a link, through which nothing is written"):
        prepare(options, tmp_path / "out")

    assert list(link_target.iterdir()) == []


def test_too_many_bad_records_in_all_units_keep_the_finished_units(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few bad records in each unit may be too many in total. With a higher limit, no unit is read again."""
    for file in range(3):
        lines = [json.dumps({"text": f"Document {100 * file + line}"}) for line in range(90)]
        lines[8:40:4] = ["{"] * 8
        (tmp_path / f"{file}.jsonl").write_text("\n".join(lines) + "\n")
    source = Source("jsonl", (str(tmp_path),), unit_bytes=2000)
    corpus = PreparationOptions(source, 0.2, tokenizer, 0)
    output = tmp_path / "out"

    with pytest.raises(ValueError, match=rf"of 270 records 24 are bad .*; the first: {tmp_path}/0.jsonl:9: malformed JSON"):
        prepare(corpus, output)

    units = list((tmp_path / "out.partial" / "units").iterdir())
    assert len(units) == len(source.units())
    assert len(units) > 3
    monkeypatch.setattr("megatape.data.prepare.passes.batches.read_unit", None)
    index, _ = prepare(replace(corpus, source=replace(source, max_bad_fraction=0.1)), output)
    assert index.counts == {"bad records": 24}


VOCAB_SIZE = 100_000
PART = Split(documents=1, tokens=1, text_bytes=1, unigram_entropy=0.0, shards=[])


def folder_of_finished_units(output: Path, num_units: int, options: PreparationOptions, tokenizer: Tokenizer) -> PartialFolder:
    """Create an unfinished preparation, whose units have one document each, counting a large vocabulary."""
    summary = PartSummary(
        splits=dict.fromkeys(SPLITS, PART),
        tables={split: [] for split in SPLITS},
        counts=CorpusCounts(inputs={"a": DocumentCounts(2, 2, 2, 2)}),
    )
    folder = created_folder(output)
    for number in range(num_units):
        token_counts: Any = dict.fromkeys(SPLITS, np.full(VOCAB_SIZE, number, np.int64))
        unit_folder = folder.unit_folder(number)
        unit_folder.mkdir()
        (unit_folder / SUMMARY).write_text(json.dumps(asdict(summary)))
        np.savez_compressed(unit_folder / TOKEN_COUNTS, **token_counts)
    units = [Unit(("a",), 0)] * num_units
    folder.store_plan(options.plan(units, tokenizer), tokenizer)
    return folder


def test_assembly_holds_one_unit_in_memory(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory must not grow as units times vocabulary size, once 38 GB for C4 as Parquet."""
    options = PreparationOptions(Source("jsonl", ("a",)), 0.1, tokenizer, 0)
    indices = list[Any]()
    monkeypatch.setattr(assembly, "build_index", lambda *_, **parts: indices.append(parts))

    def peak_bytes(num_units: int) -> int:
        folder = folder_of_finished_units(tmp_path / f"{num_units}", num_units, options, tokenizer)
        plan = folder.plan()
        assert plan is not None
        tracemalloc.start()
        assembly.assemble(folder, options.source, plan, lambda: None)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    peak_bytes(2)  # Import what assembling needs.
    assert peak_bytes(40) < 1.5 * peak_bytes(4)

    expected = replace(PART, documents=40, tokens=40, text_bytes=40)
    for split in indices[1]["splits"].values():
        assert split.unigram_entropy == pytest.approx(np.log(VOCAB_SIZE))
        assert replace(split, unigram_entropy=0.0) == expected


def test_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    """A folder named like an unfinished preparation may be the user's input."""
    folder = tmp_path / "out.partial"
    folder.mkdir()
    (folder / "a.jsonl").write_text(json.dumps({"text": "a text"}) + "\n")
    options = PreparationOptions(Source("jsonl", (str(folder),)), 0.1, None, 300)

    with pytest.raises(ExistingPath, match="out.partial has a.jsonl, so it is not an unfinished preparation: rename it"):
        prepare(options, tmp_path / "out")

    assert [path.name for path in folder.iterdir()] == ["a.jsonl"]
