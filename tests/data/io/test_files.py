"""Files are the same by path, by file URL, in object storage and on a web server."""

import importlib.util
from pathlib import Path

import fsspec
import pytest

from megatape.commands.cli.extras import EXTRAS
from megatape.data.io.files import copy_file, file_states, is_url, open_file, read_beginning
from megatape.data.io.inputs import find_files
from tests.helpers.processes.web import Web

SAME_FILES = {"a/one.jsonl": b"1", "a/two.jsonl": b"22", "a/b/three.jsonl": b"333", "a/other.txt": b""}


def test_a_missing_file_is_named(web: Web) -> None:
    with pytest.raises(FileNotFoundError, match="nothing.bin: the server answers 404"):
        open_file(web.url("nothing.bin"))
    with pytest.raises(FileNotFoundError, match="input memory://none: no such file"):
        find_files(["memory://none"], "*")


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match="Protocol not known: gopher"):
        open_file("gopher://host/x")


@pytest.mark.skipif(importlib.util.find_spec("gcsfs") is not None, reason="gcsfs is installed")
def test_a_missing_package_of_a_protocol_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="gs://bucket/x: Please install gcsfs") as error:
        open_file("gs://bucket/x")

    assert error.value.name in EXTRAS


@pytest.fixture(params=["path", "file URL", "object storage", "web server"])
def root(request: pytest.FixtureRequest, web: Web, tmp_path: Path) -> str:
    """Return folders of every kind with the same files."""
    memory = fsspec.filesystem("memory")
    for name, content in SAME_FILES.items():
        path = tmp_path / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        memory.pipe_file(f"/sources/{name}", content)
        web.files[name] = content
    roots = {
        "path": f"{tmp_path}/files",
        "file URL": f"file://{tmp_path}/files",
        "object storage": "memory://sources",
        "web server": web.address,
    }
    return roots[request.param]


def test_the_same_files_by_path_and_by_url(root: str, tmp_path: Path) -> None:
    """Listing, measuring, reading and copying works alike for files of every kind."""
    one, two = find_files([f"{root}/a/"], "*.jsonl", recursive=False)
    assert one.endswith("/one.jsonl")
    assert two.endswith("/two.jsonl")
    assert [state.size for state in file_states([one, two])] == [1, 2]

    with open_file(two) as file:
        assert file.read() == b"22"
    copy_file(two, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"22"

    names = find_files([f"{root}/a/"], "*.jsonl")
    assert [name.partition("/a/")[2] for name in names] == ["b/three.jsonl", "one.jsonl", "two.jsonl"]
    with pytest.raises(ValueError, match=r"no file named \*.parquet in this directory"):
        find_files([f"{root}/a/"], "*.parquet")


@pytest.mark.parametrize("root", ["object storage", "web server"], indirect=True)
def test_patterns_on_servers_name_files(root: str) -> None:
    """A user's pattern takes precedence over the source's own."""
    _, two = find_files([f"{root}/a/"], "*.jsonl", recursive=False)

    assert find_files([f"{root}/a/{{one,two}}.jsonl"]) == [f"{root}/a/one.jsonl", f"{root}/a/two.jsonl"]
    assert find_files([f"{root}/a/t*.jsonl"], "*.txt") == [two]
    assert is_url(two)
    with pytest.raises(ValueError, match=r"a/x\*.jsonl: no file"):
        find_files([f"{root}/a/x*.jsonl"])


def test_paths_are_no_urls() -> None:
    assert not is_url("/data/a")
    assert not is_url("C4/{a,b}")


def test_another_content_of_the_same_size_is_another_version(web: Web, tmp_path: Path) -> None:
    """Paths, a web server and object storage all tell the two contents apart."""
    memory = fsspec.filesystem("memory")
    path = tmp_path / "a"
    names = [str(path), web.url("a"), "memory://versions/a"]

    def write(content: bytes) -> None:
        path.write_bytes(content)
        web.files["a"] = content
        memory.pipe_file("/versions/a", content)

    write(b"one")
    before = file_states(names)
    assert file_states(names) == before

    write(b"two")
    after = file_states(names)
    assert [state.size for state in after] == [state.size for state in before]
    for number in range(len(names)):
        assert after[number].version != before[number].version


@pytest.mark.parametrize("size", [0, 1, 2**16, 2**16 + 1, 300_000])
def test_the_beginning_of_a_file_is_read(tmp_path: Path, size: int) -> None:
    """A small file is read by one call, a large one in parts."""
    content = bytes(range(256)) * (size // 256 + 1)
    path = tmp_path / "file"
    path.write_bytes(content[:size])
    for max_bytes in (1, 2**16, 10**6):
        assert read_beginning(str(path), max_bytes) == content[: min(size, max_bytes)]
        assert read_beginning(path.as_uri(), max_bytes) == content[: min(size, max_bytes)]


def test_a_file_of_unknown_size_is_read_to_its_end() -> None:
    """The kernel announces a size of 0 for its own files."""
    path = Path("/proc/self/status")
    assert path.stat().st_size == 0
    assert read_beginning(str(path), 10**6).startswith(b"Name:")
