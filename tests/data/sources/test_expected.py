"""Lists of expected files: the source is complete and unchanged, or every difference is named."""

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


def write_list(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def lines_of(form: str) -> list[str]:
    """Return a line for each file, as printed by md5sum and similar tools, or its size."""
    lines = []
    for name, content in CONTENTS.items():
        if form == "size":
            lines.append(f"{len(content)} {name}")
        elif form == "md5":
            lines.append(f"{hashlib.md5(content).hexdigest()} *./{name}")
        else:
            lines.append(f"{hashlib.new(form, content).hexdigest()}  ./{name}")
    return lines


FORMS = pytest.mark.parametrize("form", ["size", "md5", "sha1", "sha256"])


@FORMS
def test_files_as_listed_are_accepted(source: Source, tmp_path: Path, form: str) -> None:
    check_expected(source, write_list(tmp_path / "list", [*lines_of(form), ""]))


@FORMS
def test_a_list_may_have_absolute_paths(source: Source, tmp_path: Path, form: str) -> None:
    lines = [line.replace("./", "").replace("en/", f"{tmp_path}/en/") for line in lines_of(form)]

    check_expected(source, write_list(tmp_path / "list", lines))


@FORMS
def test_a_list_may_have_names_without_folders(source: Source, tmp_path: Path, form: str) -> None:
    lines = [line.replace("en/", "") for line in lines_of(form)]

    check_expected(source, write_list(tmp_path / "list", lines))


@FORMS
def test_files_behind_urls_are_checked(tmp_path: Path, form: str) -> None:
    listing = write_list(tmp_path / "list", lines_of(form))

    with served(**CONTENTS) as web:
        check_expected(Source("jsonl", (web.url("en/"),)), listing)


def test_each_difference_is_named(source: Source, tmp_path: Path) -> None:
    """Truncated, changed, missing and unlisted files are named. A partial source may lack files."""
    truncated = tmp_path / "en/0.jsonl"
    changed = tmp_path / "en/1.jsonl"
    sizes = lines_of("size")
    hashes = lines_of("sha256")
    listing = write_list(tmp_path / "list", [sizes[0], *hashes[1:3]])
    truncated.write_bytes(b"")
    changed.write_bytes(changed.read_bytes().replace(b"text 1", b"text 9"))
    (tmp_path / "en/2.jsonl").unlink()
    expected_hash = hashes[1].split()[0]
    changed_hash = hashlib.sha256(changed.read_bytes()).hexdigest()

    differences = [
        f"{truncated} has 0 bytes, not {len(CONTENTS['en/0.jsonl'])}",
        f"{changed} has the sha256 {changed_hash}, not {expected_hash}",
        f"{tmp_path}/en/3.jsonl is not in the list",
        "en/2.jsonl is missing",
    ]
    message = f"expect {listing}: 4 files differ: {'; '.join(differences)}. Download them again"
    with pytest.raises(UserError, match=re.escape(message)):
        check_expected(source, listing)

    with pytest.raises(UserError, match=r": 3 files differ: (?!.*missing)"):
        check_expected(Source("jsonl", source.inputs, partial=True), listing)


def test_a_malformed_line_is_refused(source: Source, tmp_path: Path) -> None:
    listing = write_list(tmp_path / "list", [lines_of("size")[0], "SHA256 (a) = 1"])

    with pytest.raises(UserError, match=r"list:2: 'SHA256 \(a\) = 1' has no checksum or size and no name"):
        check_expected(source, listing)


def test_a_missing_list_is_refused(source: Source, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        check_expected(source, tmp_path / "nowhere")


def test_a_source_without_files_is_refused(tmp_path: Path) -> None:
    listing = write_list(tmp_path / "list", lines_of("size"))

    with pytest.raises(UserError, match="expect .*: `source` python has no files"):
        check_expected(Source("python"), listing)
