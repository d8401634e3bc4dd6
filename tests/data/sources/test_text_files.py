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
    assert texts == ["text"] and counts.bad_examples == [f"{tmp_path}/a.txt: {format_name}, not text"]
    with pytest.raises(UserError, match=f"^{tmp_path}/a.txt: {format_name}, not text: convert it to text first"):
        read("text", tmp_path / "b.txt", tmp_path / "a.txt")


def test_python_is_the_standard_library_without_tests() -> None:
    texts, _ = read("python")
    assert sum(map(len, texts)) > 5_000_000
    assert Path(json.__file__).read_text() in texts
    import test.support

    assert Path(test.support.__file__).read_text() not in texts
    assert Path(pytest.__file__).read_text() not in texts
    assert texts[:50] == read("python", max_documents=50)[0]


def test_links_in_a_folder_are_not_followed(tmp_path: Path) -> None:
    """They lead anywhere: they are named and counted as members of tars are. A link that is given itself is a file."""
    folder = tmp_path / "texts"
    secret = tmp_path / "secrets" / "secret.txt"
    link = tmp_path / "link.txt"
    for path, content in {folder / "a.txt": "good", secret: "secret"}.items():
        path.parent.mkdir()
        path.write_text(content)
    (folder / "b.txt").symlink_to(secret)
    (folder / "c").symlink_to(secret.parent)
    texts, counts = read("text", folder, max_skipped_fraction=0.4)
    assert texts == ["good"] and counts.bad_examples == [f"{folder}/b.txt: it is a link, no file"]
    (folder / "b.txt").rename(folder / "b.py")
    (folder / "a.txt").rename(folder / "a.py")
    assert read("code", folder)[0] == ["good"]
    link.symlink_to(folder / "a.py")
    assert read("text", link)[0] == ["good"]


def test_code_is_what_is_named_like_it(tmp_path: Path) -> None:
    """Not what tools, others and build systems left there, nor what links lead to."""
    files = ["vendor/project/a.py", "vendor/project/src/b.rs", "vendor/project/Makefile"]
    others = [".git/hooks/x.sh", "node_modules/y/index.js", "src/third_party/z.c", "data.bin", "a.json", "build/lib/a.py"]
    (tmp_path / "secret.py").write_text("secret")
    for name in [*files, *(f"vendor/project/{name}" for name in others)]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "vendor/project/link.py").symlink_to(tmp_path / "secret.py")
    (tmp_path / "vendor/project/zeros.c").write_bytes(b"int main\0")
    texts, counts = read("code", tmp_path / "vendor" / "project")
    assert sorted(texts) == sorted(files)
    assert counts.bad_examples == [f"{tmp_path}/vendor/project/zeros.c: binary, not text"]
