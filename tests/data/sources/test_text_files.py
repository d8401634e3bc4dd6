"""Text files, and the standard library of Python."""

import gzip
import json
from pathlib import Path

import pytest

from megatape.errors import UserError
from tests.helpers.data.sources import read


def test_text_file_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"first\r\n\n file ")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.txt").write_text("second")
    (tmp_path / "c.txt").write_bytes(b"ab\xff")
    (tmp_path / "d.bin").write_text("not text")

    texts, counts = read("text", tmp_path, max_skipped_fraction=0.3)

    assert texts == ["first\r\n\n file ", "second"]
    assert counts.bad_examples == [f"{tmp_path / 'c.txt'}: invalid UTF-8 (invalid start byte at byte 2)"]
    assert read("text", tmp_path / "d.bin")[0] == ["not text"]


@pytest.mark.parametrize(
    ("content", "format_name"),
    [
        (b"%PDF-1.7\n1 0 obj\n", "a PDF document"),
        (b"PK\x03\x04" + bytes(20), "a zip file or a document such as .docx, .odt and .epub"),
        (b"{\\rtf1\\ansi text}", "a document in Rich Text Format"),
        (gzip.compress(b"text", mtime=0), "a file compressed by gzip"),
    ],
)
def test_documents_of_other_formats_are_no_text(tmp_path: Path, content: bytes, format_name: str) -> None:
    """Many such files are valid UTF-8. In a folder they are bad records, and as an input they are refused."""
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "b.txt").write_text("text")

    texts, counts = read("text", tmp_path)

    assert texts == ["text"]
    assert counts.bad_examples == [f"{tmp_path}/a.txt: {format_name}, not text"]
    with pytest.raises(UserError, match=f"^{tmp_path}/a.txt: {format_name}, not text: convert it to text first"):
        read("text", tmp_path / "b.txt", tmp_path / "a.txt")


def test_python_is_the_standard_library_without_tests() -> None:
    import test.support

    texts, _ = read("python")

    assert sum(map(len, texts)) > 5_000_000
    assert Path(json.__file__).read_text() in texts
    assert Path(test.support.__file__).read_text() not in texts
    assert Path(pytest.__file__).read_text() not in texts
    assert texts[:50] == read("python", max_documents=50)[0]


def test_links_in_a_folder_are_not_followed(tmp_path: Path) -> None:
    """A link may lead anywhere, so it is counted as a bad record. A link given as an input is read like a file."""
    folder = tmp_path / "texts"
    folder.mkdir()
    good = folder / "a.txt"
    good.write_text("good")
    secret = tmp_path / "secrets" / "secret.txt"
    secret.parent.mkdir()
    secret.write_text("secret")
    (folder / "b.txt").symlink_to(secret)
    (folder / "c").symlink_to(secret.parent)
    link = tmp_path / "link.txt"
    link.symlink_to(good)

    texts, counts = read("text", folder, max_skipped_fraction=0.4)

    assert texts == ["good"]
    assert counts.bad_examples == [f"{folder}/b.txt: it is a link, no file"]
    assert read("text", link)[0] == ["good"]


def test_links_in_a_folder_of_code_are_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "a.py").write_text("good")
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    (folder / "b.py").symlink_to(secret)
    (folder / "c").symlink_to(tmp_path)

    assert read("code", folder)[0] == ["good"]


CODE_FILES = ["a.py", "src/b.rs", "Makefile"]
OTHER_FILES = [
    ".git/hooks/x.sh",
    "node_modules/y/index.js",
    "src/third_party/z.c",
    "data.bin",
    "a.json",
    "build/lib/a.py",
]


def test_code_is_chosen_by_names(tmp_path: Path) -> None:
    """Files of tools, other projects and build systems are no code of the project, nor are link targets.

    A folder above the input may be named like one of other projects.
    """
    project = tmp_path / "vendor" / "project"
    for name in CODE_FILES + OTHER_FILES:
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "secret.py").write_text("secret")
    (project / "link.py").symlink_to(tmp_path / "secret.py")
    (project / "zeros.c").write_bytes(b"int main\0")

    texts, counts = read("code", project)

    assert sorted(texts) == sorted(CODE_FILES)
    assert counts.bad_examples == [f"{project}/zeros.c: binary, not text"]
