"""Files found in a user's inputs: patterns, file URLs, and sets of numbered files."""

from pathlib import Path

import pytest

from megatape.data.io.inputs import find_files, relative
from megatape.errors import UserError
from tests.helpers.processes.web import Web


@pytest.mark.parametrize("braces", ["{1..99999999}", "{1..999}{1..999}", "{0001..200000}", "{a,{-9..99999999}}"])
def test_braces_that_stand_for_too_many_names_are_refused(braces: str) -> None:
    with pytest.raises(UserError, match=r"its braces stand for more than 100,000 names"):
        find_files([f"memory://host/{braces}.jsonl"])


def list_names(web: Web, names: list[str]) -> list[str]:
    """Let the server have these files in x/. Return their URLs as listed."""
    web.files = dict.fromkeys((f"x/{name}" for name in names), b"1")
    return find_files([web.url("x/")], "*")


@pytest.mark.parametrize(
    "names",
    [
        # Fingerprints of hub files are no part of a set's name.
        ["train-00000-of-00002-0123456789abcdef.parquet", "train-00001-of-00002-fedcba9876543210.parquet"],
        ["a-1-of-2.jsonl", "a-2-of-2.jsonl", "b_0_of_1.jsonl", "7-of-nine.jsonl"],
    ],
)
def test_complete_sets_of_numbered_files(web: Web, names: list[str]) -> None:
    """Numbers start with 0 or 1."""
    urls = list_names(web, names)

    assert len(urls) == len(names)
    assert find_files([web.url("x/")], "*", partial=False) == urls
    assert find_files(urls, partial=False) == urls


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["en/a-0-of-2.jsonl", "de/a-1-of-2.jsonl"], r"2 files a-\*-of-2.jsonl these are missing: [01]\."),
        (["a-0-of-2.jsonl", "a-1-of-2.json"], r"2 files a-\*-of-2.jsonl? these are missing: [01]\."),
        (["a-2-of-3.jsonl"], r".*missing: 0-1\."),
        (["a-3-of-3.jsonl"], r".*missing: 1-2\."),
        (["a-5-of-999999999999.jsonl"], r".*missing: 0-4, 6-999999999998\."),
    ],
)
def test_incomplete_sets_of_numbered_files_are_refused(web: Web, names: list[str], message: str) -> None:
    """A set has one folder and one extension. Files named one by one are accepted."""
    urls = list_names(web, names)

    assert len(urls) == len(names)
    assert find_files(urls, partial=False) == urls
    with pytest.raises(UserError, match=rf"^input {web.url('x/')}: of the {message}"):
        find_files([web.url("x/")], "*", partial=False)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("a%20b", "a b"),
        ("a b", "a b"),
        ("d%20e", "d%20e"),  # an existing unquoted name has precedence
        ("d%2520e", "d%20e"),
    ],
)
@pytest.mark.parametrize("scheme", ["file://", "file://localhost"])
def test_file_urls_are_quoted_or_not(tmp_path: Path, url: str, name: str, scheme: str) -> None:
    """Programs write file URLs with quoted spaces and a host, people without."""
    for folder in ("a b", "d%20e"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "c.jsonl").write_bytes(b"1")
    expected = f"{tmp_path}/{name}/c.jsonl"

    assert find_files([f"{scheme}{tmp_path}/{url}"], "*.jsonl") == [expected]
    assert find_files([f"{scheme}{tmp_path}/{url}/c.jsonl"], "*.jsonl") == [expected]
    assert relative(expected, f"file://{tmp_path}/{url}") == "c.jsonl"


@pytest.mark.parametrize(
    ("name", "source_input", "path"),
    [
        ("c4/en/a.gz", "c4/", "en/a.gz"),
        ("c4/a.gz", "./c4/a.gz", ""),
        ("a.gz", ".", "a.gz"),
        ("/c4/a.gz", "file:///c4", "a.gz"),
        ("c4/a.gz", "c", None),
        ("http://host/c4/a.gz", "http://host/c4", "a.gz"),
        ("http://host/c4/1.gz", "http://host/c4/{0..2}.gz", ""),
        ("http://host/c4/3.gz", "http://host/c4/{0..2}.gz", None),
        ("http://host/c4/900000.gz", "http://host/c4/{0..1000000..100000}.gz", ""),
        ("http://host/c4/a.gz", "http://host/c4/*.gz", ""),
        ("http://host/c4/a.gz", ".", None),
        ("c4/a.gz", "http://host/c4", None),
    ],
)
def test_the_path_of_a_file_within_an_input(name: str, source_input: str, path: str | None) -> None:
    """The path is empty for the input itself, and None for files outside of it."""
    assert relative(name, source_input) == path
