"""JSON values as types."""

import pytest

from megatape.data.shards.index_formats.legacy import LegacyShard
from megatape.utils.values.validation import as_type


def test_types_of_fields() -> None:
    """The first error is reported in one line, whatever is wrong."""
    content = {"file": "a", "bytes": 3, "members": []}
    assert as_type(content, LegacyShard) == LegacyShard("a", 3, [])
    member = {"offset": 0, "bytes": 1, "tokens": 1, "documents": 0}
    for value, message in (
        ([], "must be a dictionary or an instance of LegacyShard, got a list"),
        (
            content | {"bytes": "x" * 100},
            f"bytes: must be a valid integer, unable to parse string as an integer, got '{'x' * 80}'",
        ),
        (content | {"bytes": -1}, "bytes: must be greater than or equal to 0, got -1"),
        (content | {"bytes": 2**63}, "bytes: must be less than or equal to"),
        (content | {"members": [member]}, "members.0.sha256: Field required"),
    ):
        with pytest.raises(ValueError, match=rf"^{message}[^\n]*$"):
            as_type(value, LegacyShard)
