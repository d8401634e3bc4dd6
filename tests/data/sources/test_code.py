"""Source code."""

from pathlib import Path

from tests.helpers.sources import read


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
