"""Files skipped because of their names: found, counted and limited."""

from pathlib import Path

import fsspec
import pytest

from megatape.data.io.inputs import list_inputs, listed_files
from megatape.data.io.listing import Listing, summarize_skipped
from megatape.errors import UserError

# A British spelling that codespell would correct.
BRITISH_SPELLING = "LICENSE".replace("S", "C")


def list_folder(folder: Path, recursive: bool = True) -> Listing:
    """List the JSON lines in a folder."""
    (listing,) = list_inputs([str(folder)], "*.jsonl", recursive=recursive)
    return listing


def write_files(folder: Path, sizes: dict[str, int]) -> None:
    for name, size in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)


def test_extensions_are_compared_without_case(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": 1, "b.JSONL": 1, "c.Jsonl": 1})

    listing = list_folder(tmp_path)

    assert [Path(name).name for name in listing.names] == ["a.jsonl", "b.JSONL", "c.Jsonl"]
    assert not listing.skipped


@pytest.fixture
def mixed_folder(tmp_path: Path) -> Path:
    """A folder with one file of lines among other files, hidden files, an unfinished preparation and a link to its parent."""
    folder = tmp_path / "mixed"
    write_files(
        folder,
        {"a.jsonl": 1, "b\x1b.json": 20, "c/d.csv": 300, ".cache/a.metadata": 1, ".gitattributes": 1, "out.partial/x": 1},
    )
    (folder / "linked").symlink_to(tmp_path)
    return folder


def test_other_files_are_counted_and_named(mixed_folder: Path) -> None:
    """Hidden files, such as those left by downloads in .cache, do not count. A link back into the input counts as one."""
    skipped = summarize_skipped([list_folder(mixed_folder)])[str(mixed_folder)]

    assert skipped.files == 4
    assert skipped.bytes == 320
    assert skipped.names == ["b\\x1b.json", "d.csv", "linked/", "out.partial/"]
    assert str(skipped) == "4 files (320 bytes) skipped by name: b\\x1b.json, d.csv, linked/, out.partial/"


def test_folders_are_skipped_unless_the_listing_is_recursive(mixed_folder: Path) -> None:
    listing = list_folder(mixed_folder, recursive=False)

    expected = [f"{mixed_folder}/{name}" for name in ("b\x1b.json", "c/", "linked/", "out.partial/")]
    assert [file.name for file in listing.skipped] == expected


def test_a_file_that_is_named_is_not_skipped(mixed_folder: Path) -> None:
    assert not summarize_skipped(list_inputs([str(mixed_folder / "b\x1b.json")], "*.jsonl"))


@pytest.mark.parametrize(
    ("others", "message"),
    [
        pytest.param(
            {"x.json": 10, "y.json": 10}, "2 of 12 files and 20 of 1,020 bytes would be skipped, more than", id="files"
        ),
        pytest.param({"x.csv": 900}, "1 of 11 files and 900 of 1,900 bytes would be skipped", id="bytes"),
        pytest.param(
            {f"{number:02}.json": 1 for number in range(20)},
            r"named \*.jsonl: 00.json, .*, 09.json and 10 more. Rename them",
            id="many files",
        ),
    ],
)
def test_a_large_part_of_a_folder_is_not_skipped(tmp_path: Path, others: dict[str, int], message: str) -> None:
    """The limit applies to both number and size of files."""
    write_files(tmp_path, {f"{number}.jsonl": 100 for number in range(10)} | others)
    listing = list_folder(tmp_path)

    with pytest.raises(UserError, match=f"^input {tmp_path}: .*{message}"):
        listed_files([listing], max_skipped_fraction=0.1)

    assert len(listed_files([listing], max_skipped_fraction=1)) == 10


@pytest.mark.parametrize(
    "others",
    [
        pytest.param({"x.json": 10}, id="a small part"),
        pytest.param({"README.md": 900, "LICENSE": 900, "_SUCCESS": 900, "sha256sums.txt": 900}, id="accompanying files"),
        pytest.param({BRITISH_SPELLING: 900}, id="British spelling"),
    ],
)
def test_a_small_part_and_files_that_accompany_data_are_skipped(tmp_path: Path, others: dict[str, int]) -> None:
    """Files that accompany data may have any size."""
    write_files(tmp_path, {f"{number}.jsonl": 100 for number in range(10)} | others)

    assert len(listed_files([list_folder(tmp_path)], max_skipped_fraction=0.1)) == 10


@pytest.fixture
def server_folder() -> str:
    """Return the URL of a folder with one file of lines among other files."""
    memory = fsspec.filesystem("memory")
    for name in ("a.jsonl", "b.json", "c/d.csv", ".e"):
        memory.pipe_file(f"/skipped/{name}", b"12345")
    return "memory://skipped"


def test_other_files_on_servers_are_counted(server_folder: str) -> None:
    listings = list_inputs([server_folder], "*.jsonl")

    skipped = summarize_skipped(listings)[server_folder]
    assert [name.rpartition("/")[2] for name in listed_files(listings)] == ["a.jsonl"]
    assert skipped.files == 2
    assert skipped.bytes == 10
    assert skipped.names == ["b.json", "d.csv"]


def test_a_pattern_of_the_user_skips_nothing(server_folder: str) -> None:
    listings = list_inputs([f"{server_folder}/*.jsonl"], "*.jsonl")

    assert [name.rpartition("/")[2] for name in listed_files(listings)] == ["a.jsonl"]
    assert not summarize_skipped(listings)


def test_files_behind_links_to_folders_are_counted(tmp_path: Path) -> None:
    """A link to a folder counts with its files. Unfinished preparations are named. A link into the input is one file."""
    folder = tmp_path / "input"
    write_files(folder, {"a.jsonl": 2})
    write_files(tmp_path / "other", {f"{number}.jsonl": 2 for number in range(20)})
    (folder / "web.partial").mkdir()
    (folder / "more").symlink_to(tmp_path / "other")
    (folder / "itself").symlink_to(folder)

    listing = list_folder(folder)

    assert listing.names == [str(folder / "a.jsonl")]
    skipped = {file.name.removeprefix(f"{folder}/") for file in listing.skipped}
    assert skipped == {"web.partial/", "itself/", *(f"more/{number}.jsonl" for number in range(20))}
    with pytest.raises(UserError, match="21 of 22 files and 40 of 42 bytes would be skipped"):
        listed_files([listing], max_skipped_fraction=0.5)
