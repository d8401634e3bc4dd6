"""Names of files."""

import re

import pytest

from megatape.utils.files.paths import FileName
from megatape.utils.values.validation import as_type


def test_names_of_files() -> None:
    names = ["a", "...", "a b", ".a", "a.."]
    assert as_type(names, list[FileName]) == names
    for name in ("", ".", "..", "a/b", "/", "a/", "../a", "a\0"):
        with pytest.raises(ValueError, match=f"^0 is {re.escape(repr(name))}: not a plain file name$"):
            as_type([name], list[FileName])
