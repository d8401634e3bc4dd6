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
from tests.helpers.data.preparation import NUM_FILES, UNIT_BYTES, text_of, write_corpus


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Six files of lines, most of them two units."""
    return replace(write_corpus(tmp_path / "texts"), unit_bytes=UNIT_BYTES)


def test_every_line_belongs_to_one_unit(source: Source) -> None:
    """Files are split at lines, so that nothing is lost or read twice."""
    units = source.units()
    counts = CorpusCounts()

    texts = []
    for unit in units:
        texts += [document.text for document in read_unit(source, unit, counts)]

    expected = []
    for file in range(NUM_FILES):
        lines = [100 * file + line for line in range(30)]
        lines[9] = 5  # the duplicate in every file
        del lines[7]  # an empty text or a bad record
        expected += [text_of(number) for number in lines]
    assert len(units) > NUM_FILES
    assert [unit for unit in units if unit.end is None] == []
    assert texts == expected
    assert counts.total.dropped == {"empty documents": 2, "bad records": 4}
    assert counts.read_bytes >= sum(unit.num_bytes for unit in units)


@pytest.mark.parametrize("unit_bytes", [1, 2, 117, 118, 119, 5000])
def test_units_of_any_size_have_all_lines(source: Source, unit_bytes: int) -> None:
    """A line has about 118 bytes."""
    path = Path(source.units()[0].inputs[0])
    num_bytes = path.stat().st_size

    num_documents = 0
    for begin in range(0, num_bytes, unit_bytes):
        unit = Unit((str(path),), 0, begin, min(begin + unit_bytes, num_bytes))
        num_documents += len(list(read_unit(source, unit, CorpusCounts())))

    assert num_documents == 29


def test_a_length_that_no_file_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The length announced by a server must not decide how much memory the list of units takes."""
    state = FileState(10**14, "")
    monkeypatch.setattr("megatape.data.sources.units.file_states", lambda names: [state for _ in names])
    (tmp_path / "a.jsonl").write_text("")
    source = Source("jsonl", (str(tmp_path),))

    message = r"a.jsonl: with its 100,000,000,000,000 bytes the source has more than 1,048,576 units"
    with pytest.raises(UserError, match=message):
        source.units()


@pytest.mark.parametrize(
    ("num_bytes", "num_workers", "expected"),
    [
        pytest.param(11 * 10**6, 8, 64 * 2**20, id="a small source stays whole"),
        pytest.param(16 * 10**6, 2, 4 * 2**20, id="two workers share 16 MB"),
        pytest.param(168 * 10**6, 1, 64 * 2**20, id="one worker has units of the maximum size"),
        pytest.param(10**12, 64, 64 * 2**20, id="a large source has units of the maximum size"),
        pytest.param(168 * 10**6, 2, 21 * 10**6, id="four units per worker"),
        pytest.param(40 * 10**6, 2, 5 * 10**6, id="four units per worker of less data"),
        pytest.param(40 * 10**6, 128, 4 * 2**20, id="many workers do not make units tiny"),
    ],
)
def test_default_unit_size(num_bytes: int, num_workers: int, expected: int) -> None:
    assert default_unit_bytes(num_bytes, num_workers) == expected
