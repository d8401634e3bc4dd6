"""One unit: unprintable names are escaped in its tables and counts, and a damaged first pass is noticed."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import parse_rules
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.progress import UnitPass
from megatape.data.sources.source import Source
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from tests.helpers.data.data_directory import flip, hashes_of, small_tokenizer
from tests.helpers.data.preparation import UNIT_BYTES, prepare_until, write_lines


def test_unprintable_names_are_escaped(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A name may have bytes of no encoding, line breaks, or escape sequences of terminals."""
    folder = tmp_path / "code"
    folder.mkdir()
    for name in (b"\xff.py", b"a\nb.py", b"\x1b[2J.py"):
        (folder / os.fsdecode(name)).write_text(f"text of {name!r}")
    (folder / "c\n.py").write_bytes(b"\xff")
    for number in range(9):
        (folder / f"{number}.py").write_text(f"text {number}")

    index, counts = prepare(PreparationOptions(Source("code", (str(folder),)), 0.5, tokenizer, 0), tmp_path / "out")

    assert counts is not None
    assert counts.bad_examples == [f"{folder}/c\\n.py: invalid UTF-8 (invalid start byte at byte 0)"]
    places = set()
    for tables in index.document_tables.values():
        for table in tables:
            places |= set(parquet.read_table(tmp_path / "out" / table.file)["place"].to_pylist())
    assert places > {f"{folder}/{name}.py" for name in ("\\udcff", "a\\nb", "\\x1b[2J")}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> PreparationOptions:
    """A corpus of several units, whose documents are compared for exact and near duplicates."""
    source = replace(write_lines(tmp_path_factory.mktemp("corpus") / "texts"), unit_bytes=2 * UNIT_BYTES)
    return PreparationOptions(source, 0.1, small_tokenizer(), 0, Cleaning(parse_rules(["near_duplicates"])))


@pytest.fixture(scope="module")
def stopped(corpus: PreparationOptions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a preparation that stopped before writing units. A finished one is next to it, named `whole`."""
    output = tmp_path_factory.mktemp("stopped") / "out"
    prepare_until(corpus, output, UnitPass.WRITE, 0)
    prepare(corpus, output.with_name("whole"))
    return output.with_name("out.partial")


@pytest.fixture
def first_passes(stopped: Path, tmp_path: Path) -> Path:
    """Return the first passes and comparisons in a copy of the stopped preparation. Its output is tmp_path / "out"."""
    return shutil.copytree(stopped, tmp_path / "out.partial") / "verdicts"


@pytest.mark.parametrize(
    "name", ["documents.jsonl", "tokens.bin", "keys.npz", "runs.u4", "run_ends.npy", "counts.json", "checksums.json"]
)
def test_a_damaged_first_pass(corpus: PreparationOptions, first_passes: Path, tmp_path: Path, name: str) -> None:
    """Shards made from a damaged first pass would have valid checksums."""
    first_pass = first_passes / "00000"
    damaged = first_pass / name
    if name in ("keys.npz", "runs.u4", "run_ends.npy"):
        # These files are only read to compare documents, so make the command compare them again.
        for compared in first_passes.glob("compared-*"):
            compared.unlink()
    flip(damaged, damaged.stat().st_size // 2)

    message = f"{damaged}: corrupted.*: remove {first_pass}, and the same command prepares it again"
    with pytest.raises(UserError, match=message):
        prepare(corpus, tmp_path / "out")


@pytest.mark.parametrize("flipped_byte", [183, None], ids=["first byte changed", "truncated"])
@pytest.mark.parametrize("name", ["compared-000.npz", "compared-001.npz", "compared-near.npz"])
def test_a_damaged_comparison(
    corpus: PreparationOptions, first_passes: Path, tmp_path: Path, name: str, flipped_byte: int | None
) -> None:
    """The error names the file if it is truncated, or if the first byte of its first array has changed."""
    compared = first_passes / name
    if name != "compared-near.npz":
        # Make the command read the other comparisons to recompute this one.
        (first_passes / "compared-near.npz").unlink()
    if flipped_byte is None:
        compared.write_bytes(compared.read_bytes()[:-2])
    else:
        flip(compared, flipped_byte)

    message = f"{compared}: corrupted.*: remove it, and the same command compares the documents again"
    with pytest.raises(UserError, match=message):
        prepare(corpus, tmp_path / "out")


def test_damaged_files_are_made_again(corpus: PreparationOptions, stopped: Path, first_passes: Path, tmp_path: Path) -> None:
    """After removing a truncated first pass and a comparison, the same command gives the same bytes."""
    tokens = first_passes / "00000" / "tokens.bin"
    tokens.write_bytes(tokens.read_bytes()[:-2])
    with pytest.raises(UserError, match=f"{tokens}: corrupted"):
        prepare(corpus, tmp_path / "out")

    shutil.rmtree(tokens.parent)
    (first_passes / "compared-001.npz").unlink()
    prepare(corpus, tmp_path / "out")

    assert hashes_of(tmp_path / "out") == hashes_of(stopped.with_name("whole"))


def test_first_passes_without_checksums_are_read(
    corpus: PreparationOptions, stopped: Path, first_passes: Path, tmp_path: Path
) -> None:
    """Earlier versions wrote first passes without checksums."""
    for path in first_passes.glob("*/checksums.json"):
        path.unlink()

    prepare(corpus, tmp_path / "out")

    assert hashes_of(tmp_path / "out") == hashes_of(stopped.with_name("whole"))
