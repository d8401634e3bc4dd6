"""Files skipped because of their names: found, counted and limited."""

from pathlib import Path

import fsspec
import pytest

from megatape.data.io.inputs import list_inputs, listed_files
from megatape.data.io.listing import Listing, summarize_skipped
from megatape.errors import UserError


def listing_of(folder: Path, files: dict[str, int]) -> Listing:
    """Write files of these sizes and list the folder as lines of JSON."""
    for name, size in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x" * size)
    (listing,) = list_inputs([str(folder)], "*.jsonl")
    return listing


def test_extensions_are_compared_without_case(tmp_path: Path) -> None:
    listing = listing_of(tmp_path, {"a.jsonl": 1, "b.JSONL": 1, "c.Jsonl": 1})
    assert [Path(name).name for name in listing.names] == ["a.jsonl", "b.JSONL", "c.Jsonl"]
    assert not listing.skipped


def test_other_files_are_counted_and_named(tmp_path: Path) -> None:
    """Hidden files, such as those left by downloads in .cache, do not count. A link back into the input counts as one."""
    files = {"a.jsonl": 1, "b\x1b.json": 20, "c/d.csv": 300, ".cache/a.metadata": 1, ".gitattributes": 1, "out.partial/x": 1}
    (tmp_path / "linked").symlink_to(tmp_path.parent)
    found = summarize_skipped([listing_of(tmp_path, files)])[str(tmp_path)]
    assert (found.files, found.bytes, found.names) == (4, 320, ["b\\x1b.json", "d.csv", "linked/", "out.partial/"])
    assert str(found) == "4 files (320 bytes) skipped by name: b\\x1b.json, d.csv, linked/, out.partial/"
    (listing,) = list_inputs([str(tmp_path)], "*.jsonl", recursive=False)
    assert [file.name for file in listing.skipped] == [
        f"{tmp_path}/{name}" for name in ("b\x1b.json", "c/", "linked/", "out.partial/")
    ]
    assert not summarize_skipped(list_inputs([str(tmp_path / "b\x1b.json")], "*.jsonl"))


@pytest.mark.parametrize(
    "others, message",
    [
        ({"x.json": 10}, ""),
        ({"x.json": 10, "y.json": 10}, "2 of 12 files and 20 of 1,020 bytes would be skipped, more than"),
        ({"x.csv": 900}, "1 of 11 files and 900 of 1,900 bytes would be skipped"),
        ({f"{number:02}.json": 1 for number in range(20)}, r"named \*.jsonl: 00.json, .*, 09.json and 10 more. Rename them"),
        ({"README.md": 900, "LICENSE": 900, "_SUCCESS": 900, "sha256sums.txt": 900}, ""),
        ({"LICENSE".replace("S", "C"): 900}, ""),  # British spelling, which codespell would correct
    ],
)
def test_a_large_part_of_a_folder_is_not_skipped(tmp_path: Path, others: dict[str, int], message: str) -> None:
    """The limit applies to the number and to the size of files. Files that accompany data may have any size."""
    listing = listing_of(tmp_path, {f"{number}.jsonl": 100 for number in range(10)} | others)
    if message:
        with pytest.raises(UserError, match=f"^input {tmp_path}: .*{message}"):
            listed_files([listing], max_skipped_fraction=0.1)
    assert len(listed_files([listing], max_skipped_fraction=1 if message else 0.1)) == 10


def test_other_files_on_servers(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for name in ("a.jsonl", "b.json", "c/d.csv", ".e"):
        memory.pipe_file(f"/skipped/{name}", b"12345")
    for url in ("memory://skipped", "memory://skipped/*.jsonl"):
        listings = list_inputs([url], "*.jsonl")
        found = summarize_skipped(listings)
        assert [name.rpartition("/")[2] for name in listed_files(listings)] == ["a.jsonl"]
        if url.endswith("*.jsonl"):  # a pattern of the user's own
            assert not found
        else:
            assert (found[url].files, found[url].bytes, found[url].names) == (2, 10, ["b.json", "d.csv"])


def test_files_behind_links_to_folders_are_counted(tmp_path: Path) -> None:
    """A link to a folder counts with its files. Unfinished preparations are named. A link into the input is one file."""
    folder = tmp_path / "given"
    other = tmp_path / "other"
    (folder / "web.partial").mkdir(parents=True)
    other.mkdir()
    (folder / "a.jsonl").write_text("{}")
    for number in range(20):
        (other / f"{number}.jsonl").write_text("{}")
    (folder / "more").symlink_to(other)
    (folder / "itself").symlink_to(folder)
    (listing,) = list_inputs([str(folder)], "*.jsonl")
    assert listing.names == [str(folder / "a.jsonl")]
    skipped = {file.name.removeprefix(f"{folder}/") for file in listing.skipped}
    assert skipped == {"web.partial/", "itself/", *(f"more/{number}.jsonl" for number in range(20))}
    with pytest.raises(UserError, match="21 of 22 files and 40 of 42 bytes would be skipped"):
        listed_files([listing], max_skipped_fraction=0.5)
