"""One unit: unprintable names are escaped in its tables and counts, and a damaged first pass is noticed."""

import os
import random
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import parse_rules
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.passes.batch_file import HEADER
from megatape.data.prepare.progress import UnitPass
from megatape.data.sources.source import Source
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from tests.helpers.data.data_directory import flip, hashes_of, small_tokenizer
from tests.helpers.data.preparation import UNIT_BYTES, prepare_until, write_corpus


def test_unprintable_names_are_escaped(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A name may contain undecodable bytes, line breaks, or terminal escape sequences."""
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
    locations = set()
    for tables in index.document_tables.values():
        for table in tables:
            locations |= set(parquet.read_table(tmp_path / "out" / table.file)["place"].to_pylist())
    assert locations > {f"{folder}/{name}.py" for name in ("\\udcff", "a\\nb", "\\x1b[2J")}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> PreparationOptions:
    """Write a corpus with several units, comparing documents for exact and near duplicates."""
    source = replace(write_corpus(tmp_path_factory.mktemp("corpus") / "texts"), unit_bytes=2 * UNIT_BYTES)
    return PreparationOptions(source, 0.1, small_tokenizer(), 0, Cleaning(parse_rules(["near_duplicates"])))


@pytest.fixture(scope="module")
def stopped(corpus: PreparationOptions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a preparation stopped before writing units. A finished one is next to it, named `whole`."""
    output = tmp_path_factory.mktemp("stopped") / "out"
    prepare_until(corpus, output, UnitPass.WRITE, 0)
    prepare(corpus, output.with_name("whole"))
    return output.with_name("out.partial")


@pytest.fixture
def first_passes(stopped: Path, tmp_path: Path) -> Path:
    """Return the first passes and comparisons in a copy of the stopped preparation. Its output is tmp_path / "out"."""
    return shutil.copytree(stopped, tmp_path / "out.partial") / "verdicts"


@pytest.mark.parametrize(
    "name",
    ["documents.arrow", "codes.u1", "keys.bin", "runs.u4", "run_ends.u8", "counts.json", "checksums.json"],
)
def test_a_damaged_first_pass(corpus: PreparationOptions, first_passes: Path, tmp_path: Path, name: str) -> None:
    """Shards made from a damaged first pass would have valid checksums."""
    first_pass = first_passes / "00000"
    damaged = first_pass / name
    if name == "keys.bin":
        # This file is only read to compare documents, so make the command compare them again.
        for compared in (first_passes.parent / "compared").iterdir():
            compared.unlink()
    flip(damaged, damaged.stat().st_size // 2)

    message = f"{damaged}: corrupted.*: remove {first_pass}, and the same command prepares it again"
    with pytest.raises(UserError, match=message):
        prepare(corpus, tmp_path / "out")


@pytest.mark.parametrize("is_truncated", [False, True], ids=["all bits inverted", "truncated"])
@pytest.mark.parametrize("name", ["runs.u4", "run_ends.u8"])
def test_damaged_shingles_stop_the_comparison(
    corpus: PreparationOptions, first_passes: Path, tmp_path: Path, name: str, is_truncated: bool
) -> None:
    """The comparison reads parts of these files. It verifies each part, before the write pass verifies the whole file."""
    for compared in (first_passes.parent / "compared").iterdir():
        compared.unlink()
    for damaged in first_passes.glob(f"*/{name}"):
        content = damaged.read_bytes()
        if is_truncated:
            # No item ends here.
            damaged.write_bytes(content[:18])
        else:
            damaged.write_bytes(bytes(byte ^ 255 for byte in content))

    with pytest.raises(UserError, match=r"/\d+/runs.u4: corrupted.*: remove .*, and the same command prepares it again"):
        prepare(corpus, tmp_path / "out")


@pytest.mark.parametrize("is_truncated", [False, True], ids=["first byte changed", "truncated"])
@pytest.mark.parametrize("name", ["ranges.npz", "range-*.bin", "duplicates-00000.bin", "near_duplicates-00000.bin"])
def test_a_damaged_comparison(
    corpus: PreparationOptions, first_passes: Path, tmp_path: Path, name: str, is_truncated: bool
) -> None:
    folder = first_passes.parent / "compared"
    # The first range holds keys, the last one hashes.
    damaged = max(folder.glob(name))
    if name == "range-*.bin":
        # Make the command read the ranges again.
        (folder / "duplicates-00000.bin").unlink()
    if is_truncated:
        damaged.write_bytes(damaged.read_bytes()[:-2])
    else:
        flip(damaged, 0)

    message = f"{damaged}: corrupted.*: remove it, and the same command compares the documents again"
    with pytest.raises(UserError, match=message):
        prepare(corpus, tmp_path / "out")


@pytest.mark.parametrize("seed", range(12))
def test_no_flipped_bit_of_a_comparison_changes_the_result(
    corpus: PreparationOptions, stopped: Path, first_passes: Path, tmp_path: Path, seed: int
) -> None:
    """A flipped bit is noticed, or has no effect. Every file has checksums for what is read."""
    draw = random.Random(seed)
    compared = first_passes.parent / "compared"
    files = sorted(compared.iterdir()) + sorted(first_passes.glob("*/keys.bin"))
    damaged = draw.choice(files)
    if damaged.name == "keys.bin":
        shutil.rmtree(compared)
    flip(damaged, draw.randrange(damaged.stat().st_size))

    with suppress(UserError):
        prepare(corpus, tmp_path / "out")
        assert hashes_of(tmp_path / "out") == hashes_of(stopped.with_name("whole"))


def test_damaged_files_are_made_again(corpus: PreparationOptions, stopped: Path, first_passes: Path, tmp_path: Path) -> None:
    """After removing a truncated first pass and a comparison, the same command gives the same bytes."""
    documents = first_passes / "00000" / "documents.arrow"
    documents.write_bytes(documents.read_bytes()[:-2])
    with pytest.raises(UserError, match=f"{documents}: corrupted"):
        prepare(corpus, tmp_path / "out")

    shutil.rmtree(documents.parent)
    (first_passes.parent / "compared" / "range-00001.bin").unlink()
    prepare(corpus, tmp_path / "out")

    assert hashes_of(tmp_path / "out") == hashes_of(stopped.with_name("whole"))


@pytest.mark.parametrize("fault", ["last batch missing", "batches exchanged", "length of a batch too large"])
def test_damage_between_batches_is_noticed(corpus: PreparationOptions, tmp_path: Path, fault: str) -> None:
    """Each batch has a checksum of its own, so damage may leave all of them intact."""
    corpus = replace(corpus, batch_characters=1000)
    prepare_until(corpus, tmp_path / "out", UnitPass.WRITE, 0)
    damaged = tmp_path / "out.partial/verdicts/00000/documents.arrow"
    content = damaged.read_bytes()
    batches = []
    while content:
        num_bytes, _ = HEADER.unpack_from(content)
        end = HEADER.size + num_bytes
        batches.append(content[:end])
        content = content[end:]
    assert len(batches) > 2
    if fault == "last batch missing":
        del batches[-1]
    elif fault == "batches exchanged":
        batches[0], batches[1] = batches[1], batches[0]
    else:
        batches[0] = (2**63).to_bytes(8, "little") + batches[0][8:]
    damaged.write_bytes(b"".join(batches))

    with pytest.raises(UserError, match="00000.*: corrupted.*: remove .*, and the same command prepares it again"):
        prepare(corpus, tmp_path / "out")


def test_a_first_pass_of_an_earlier_version_is_refused(corpus: PreparationOptions, first_passes: Path, tmp_path: Path) -> None:
    first_pass = first_passes / "00000"
    (first_pass / "documents.arrow").rename(first_pass / "documents.jsonl")

    message = f"{first_pass}: written by an earlier version: remove it, and the same command prepares its unit again"
    with pytest.raises(UserError, match=message):
        prepare(corpus, tmp_path / "out")
