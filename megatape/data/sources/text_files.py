"""Reads text files, one document each: .txt files, code, and the Python standard library."""

import os
import sysconfig
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from platform import python_version
from typing import Any, ClassVar

from megatape.data.counts import RecordCounts
from megatape.data.io.compression import MAGIC_BYTES
from megatape.data.io.files import read_beginning
from megatape.data.io.inputs import list_inputs, relative
from megatape.data.io.listing import Listing
from megatape.data.io.records import BYTE_ORDER_MARK
from megatape.data.sources.document import Document
from megatape.data.sources.source import Reader, Source
from megatape.data.sources.units import Unit, divide_files
from megatape.errors import UserError

# Build products and installed packages in the standard library's folder would make the corpus differ between machines.
SKIPPED_FOLDERS = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages"}
SKIPPED_PREFIXES = ("config-", "_sysconfigdata")
# A zero byte among this many first bytes marks a binary file, as in git.
BINARY_BYTES = 8000
# Suffixes of code, without .json and .ipynb, because such files are mostly data.
EXTENSIONS = """
ada adb ads asm awk bash bat bzl c cc cfg clj cljs cmake coffee cpp cr cs css cu cuh cxx d dart dockerfile el elm erl ex exs
f f03 f08 f77 f90 f95 fs fsx glsl go gradle graphql groovy h hbs hcl hh hlsl hpp hrl hs html hxx ini ino java jl js jsx kt kts
less lhs lisp lua m md mjs mk ml mli mm nim nix pas php pl pm proto ps1 purs py pyi pyx r rake rb re rkt rs rst s sass scala
scm scss sh sol sql sv svelte swift tcl tex tf thrift toml ts tsx v vb vhd vhdl vim vue wat wgsl xml yaml yml zig zsh
"""
NAMES = ("BUILD", "CMakeLists.txt", "Dockerfile", "Gemfile", "Jenkinsfile", "Makefile", "Rakefile", "Vagrantfile", "WORKSPACE")
# Folders of version control and other tools, vendored code, and build products.
SKIPPED_CODE_FOLDERS = """
.git .hg .svn .bzr CVS .tox .nox .venv venv .eggs __pycache__ .mypy_cache .pytest_cache .ruff_cache .idea .gradle
node_modules bower_components vendor vendored third_party thirdparty external site-packages dist-packages Pods Carthage
build dist target out _build cmake-build-debug cmake-build-release
"""
# First bytes of other formats, which may be valid UTF-8.
OTHER_FORMATS = {
    b"%PDF-": "a PDF document",
    b"%!PS-": "a PostScript document",
    b"{\\rtf": "a document in Rich Text Format",
    b"PK\x03\x04": "a zip file or a document such as .docx, .odt and .epub",
    b"\xd0\xcf\x11\xe0": "a document of Microsoft Office",
    b"PAR1": "a Parquet file",
}


def other_format(content: bytes) -> str | None:
    """Return the format of a file that is not text, judging by its first bytes, or None if it is not known."""
    compressed = MAGIC_BYTES.match(content)
    if compressed:
        return f"a file compressed by {compressed.lastgroup}"
    # One test is enough for most files.
    if content.startswith(tuple(OTHER_FORMATS)):
        for first_bytes, name in OTHER_FORMATS.items():
            if content.startswith(first_bytes):
                return name
    return None


class TextFiles(Reader):
    """The .txt files in folders, except links, and files given by name.

    Attributes:
        skips_binary: Whether files with zero bytes are bad records.
    """

    patterns = ("*.txt",)
    skips_binary: ClassVar[bool] = False

    def read(self, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        for name in unit.inputs:
            document = self._read_file(source, name, counts)
            if document is not None:
                yield document

    def _read_file(self, source: Source, name: str, counts: RecordCounts) -> Document | None:
        """Return the document of a file, or None if it is skipped, which is counted."""
        if os.path.islink(name) and any(relative(name, user_input) for user_input in source.all_inputs):
            counts.add_bad(name, "it is a link, no file")
            return None
        content = read_beginning(name, source.max_record_bytes + 1)
        counts.read_bytes += len(content)
        format_name = other_format(content)
        if format_name is not None:
            if any(relative(name, user_input) == "" for user_input in source.all_inputs):
                raise UserError(f"{name}: {format_name}, not text: convert it to text first, or give other files")
            counts.add_bad(name, f"{format_name}, not text")
            return None
        if len(content) > source.max_record_bytes:
            counts.add_too_long(name)
            return None
        if self.skips_binary and b"\0" in content[:BINARY_BYTES]:
            counts.add_bad(name, "binary, not text")
            return None
        try:
            return Document(content.removeprefix(BYTE_ORDER_MARK).decode(), name)
        except UnicodeDecodeError as error:
            counts.add_bad(name, f"invalid UTF-8 ({error.reason} at byte {error.start})")
            return None


class PythonLibrary(TextFiles):
    """The standard library of the running Python, without its tests."""

    takes = "nothing"

    def units(self, source: Source, inputs: tuple[str, ...], option: str = "input") -> list[Unit]:
        library = Path(sysconfig.get_path("stdlib"))
        files = []
        for path in sorted(library.rglob("*.py")):
            names = path.relative_to(library).parts
            is_skipped = any(name in SKIPPED_FOLDERS or name.startswith(SKIPPED_PREFIXES) for name in names)
            if not is_skipped:
                files.append(str(path))
        return divide_files(files, unit_bytes=source.unit_bytes)

    def describe(self, source: Source) -> dict[str, Any]:
        return {"python_version": python_version()}


class Code(TextFiles):
    """Files named like code, skipping vendored and generated folders. Links are not followed."""

    skips_binary = True
    # Repositories contain many other kinds of files.
    limits_skipped = False

    def listings(self, source: Source, inputs: tuple[str, ...], option: str = "input") -> list[Listing]:
        patterns = [f"*.{extension}" for extension in EXTENSIONS.split()]
        skipped = set(SKIPPED_CODE_FOLDERS.split())

        def is_code(file: str, user_input: str) -> bool:
            path = relative(file, user_input)
            if path is None:
                return False
            if path == "":
                # The file is the input itself.
                return True
            return skipped.isdisjoint(path.split("/")[:-1]) and not Path(file).is_symlink()

        listings = list_inputs(inputs, *patterns, *NAMES, option=option)
        return [listing.select(partial(is_code, user_input=listing.user_input)) for listing in listings]
