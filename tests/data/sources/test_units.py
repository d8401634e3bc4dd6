"""Units: every line belongs to one, and a source has a bounded number of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from megatape.data.counts import CorpusCounts
from megatape.data.io.files import FileState
from megatape.data.sources.reading import read_unit
from megatape.data.sources.source import Source
from megatape.data.sources.units import Unit, default_unit_bytes
from megatape.errors import UserError
from tests.helpers.data.preparation import NUM_FILES, UNIT_BYTES, text_of, write_lines


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Six files of lines, some skipped for a reason, most of them two units."""
    return replace(write_lines(tmp_path / "texts"), unit_bytes=UNIT_BYTES)


def test_every_line_belongs_to_one_unit(source: Source) -> None:
    """Long files are divided at lines; nothing is lost or read twice, whatever the size of a unit."""
    whole = [unit for unit in source.units() if unit.end is None]
    divided = [unit for unit in source.units() if unit.end is not None]
    assert not whole and len(divided) > NUM_FILES
    counts = CorpusCounts()
    texts = [document.text for unit in divided for document in read_unit(source, unit, counts)]
    numbers = [5 if number == 9 else 100 * file + number for file in range(NUM_FILES) for number in range(30) if number != 7]
    assert texts == [text_of(number) for number in numbers]
    assert counts.total.dropped == {"empty documents": 2, "bad records": 4}
    assert counts.read_bytes >= sum(unit.num_bytes for unit in divided)
    path = Path(divided[0].inputs[0])
    for size in (1, 2, 117, 118, 119, 5000):  # around the length of a line
        ends = [*range(size, path.stat().st_size, size), path.stat().st_size]
        units = [Unit((str(path),), 0, begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
        assert sum(len(list(read_unit(source, unit, CorpusCounts()))) for unit in units) == 29


def test_a_length_that_no_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server announces does not decide how much memory the list of units takes."""
    state = FileState(10**14, "")
    monkeypatch.setattr("megatape.data.sources.units.file_states", lambda names: [state for _ in names])
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(
        UserError, match=r"a.jsonl: with its 100,000,000,000,000 bytes the source has more than 1,048,576 units"
    ):
        Source("jsonl", (str(tmp_path),)).units()


def test_default_sizes() -> None:
    """Small sources stay whole; of others each worker gets several units, whose size no number of workers makes tiny."""
    for num_bytes, workers in [(11 * 10**6, 8), (168 * 10**6, 1), (10**12, 64)]:
        assert default_unit_bytes(num_bytes, workers) == 64 * 2**20
    assert default_unit_bytes(168 * 10**6, 2) == 21 * 10**6  # of 16 files: two in a unit
    assert default_unit_bytes(40 * 10**6, 2) == 5 * 10**6  # of 8 files: each a unit
    assert default_unit_bytes(40 * 10**6, 128) == 4 * 2**20
