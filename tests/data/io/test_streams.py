"""Files compressed by bzip2 and xz: read completely, bounded in memory, or an error."""

import bz2
import io
import lzma
import random

import pytest

from megatape.data.io.streams import CompressedStreamError, CompressedStreams

CONTENT = random.Random(0).randbytes(300_000) + bytes(700_000)


@pytest.mark.parametrize(
    "kind, stored",
    [
        ("bzip2", bz2.compress(CONTENT)),
        ("bzip2", bz2.compress(CONTENT[:99]) + bz2.compress(CONTENT[99:])),  # several streams, as written by pbzip2
        ("xz", lzma.compress(CONTENT)),
        ("xz", lzma.compress(CONTENT[:99]) + bytes(8) + lzma.compress(CONTENT[99:]) + bytes(4)),
    ],
)
def test_content_of_one_and_several_streams(kind: str, stored: bytes) -> None:
    """Streams are read in both directions, because a reader of tars seeks."""
    file = io.BufferedReader(CompressedStreams(io.BytesIO(stored), kind))
    assert file.read() == CONTENT and file.read(1) == b""
    for position in (10, 300_000, 99, 999_999, 2_000_000):
        file.seek(position)
        assert file.read(5) == CONTENT[position : position + 5]


def test_a_dictionary_that_needs_much_memory_is_refused() -> None:
    """The size of the dictionary is known before any content. Files of all of xz's presets are read."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "mf": lzma.MF_HC3, "nice_len": 16, "dict_size": 2**28}]
    with pytest.raises(CompressedStreamError, match="it takes more than 192 MiB of memory to unpack"):
        CompressedStreams(io.BytesIO(lzma.compress(b"a", filters=filters)), "xz").read()
    assert CompressedStreams(io.BytesIO(lzma.compress(b"a", preset=9)), "xz").read() == b"a"
