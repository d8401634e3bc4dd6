"""Files that a list names: complete and the same, or each difference is told."""

import hashlib
import re
from pathlib import Path

import pytest

from megatape.data.sources.expected import check_expected
from megatape.data.sources.source import Source
from megatape.errors import UserError
from tests.helpers.data.sources import json_lines
from tests.helpers.processes.web import served

CONTENTS = {f"en/{number}.jsonl": json_lines(f"text {number}") for number in range(4)}


@pytest.fixture
def source(tmp_path: Path) -> Source:
    (tmp_path / "en").mkdir()
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
    return Source("jsonl", (f"{tmp_path}/en",))


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def lines(form: str) -> list[str]:
    """A line for each file, as tools print them."""
    contents = CONTENTS.items()
    if form == "size":
        return [f"{len(content)} {name}" for name, content in contents]
    return [f"{hashlib.new(form, content).hexdigest()} {'*' if form == 'md5' else ' '}./{name}" for name, content in contents]


@pytest.mark.parametrize("form", ["size", "md5", "sha1", "sha256"])
def test_files_that_are_as_listed(source: Source, tmp_path: Path, form: str) -> None:
    """By path and by URL; a name without folders is enough."""
    listing = written(tmp_path / "list", *lines(form), "")
    check_expected(source, listing)
    check_expected(
        source,
        written(tmp_path / "absolute", *(line.replace("./", "").replace("en/", f"{tmp_path}/en/") for line in lines(form))),
    )
    with served(**CONTENTS) as web:
        check_expected(Source("jsonl", (web.url("en/"),)), listing)
        check_expected(source, written(tmp_path / "list", *(line.replace("en/", "") for line in lines(form))))


def test_each_difference_is_named(source: Source, tmp_path: Path) -> None:
    """Cut, changed in place, missing and unknown files; a partial source may lack some."""
    sizes = lines("size")
    sums = lines("sha256")
    cut, changed, missing = (tmp_path / "en" / f"{number}.jsonl" for number in (0, 1, 2))
    cut.write_bytes(b"")
    changed.write_bytes(changed.read_bytes().replace(b"text 1", b"text 9"))
    missing.unlink()
    listing = written(tmp_path / "list", sizes[0], *sums[1:3])
    digest = hashlib.sha256(changed.read_bytes()).hexdigest()
    faults = [
        f"{cut} has 0 bytes, not {len(CONTENTS['en/0.jsonl'])}",
        f"{changed} has the sha256 {digest}, not {sums[1].split()[0]}",
        f"{tmp_path}/en/3.jsonl is not in the list",
        "en/2.jsonl is missing",
    ]
    with pytest.raises(
        UserError, match=re.escape(f"expect {listing}: 4 files differ: {'; '.join(faults)}. Download them again")
    ):
        check_expected(source, listing)
    with pytest.raises(UserError, match=r": 3 files differ: (?!.*missing)"):
        check_expected(Source("jsonl", source.inputs, partial=True), listing)


def test_lists_that_are_none(source: Source, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"list:2: 'SHA256 \(a\) = 1' has no checksum or size and no name"):
        check_expected(source, written(tmp_path / "list", *lines("size")[:1], "SHA256 (a) = 1"))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        check_expected(source, tmp_path / "nowhere")
    with pytest.raises(UserError, match="expect .*: `source` python has no files"):
        check_expected(Source("python"), tmp_path / "list")
