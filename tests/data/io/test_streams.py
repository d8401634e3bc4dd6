"""Files compressed by bzip2 and xz are read completely and in bounded memory, or are refused."""

import bz2
import io
import lzma
import random

import pytest

from megatape.data.io.streams import CompressedStreamError, CompressedStreams

CONTENT = random.Random(0).randbytes(300_000) + bytes(700_000)


@pytest.mark.parametrize(
    ("kind", "compressed"),
    [
        pytest.param("bzip2", bz2.compress(CONTENT), id="bzip2"),
        pytest.param("bzip2", bz2.compress(CONTENT[:99]) + bz2.compress(CONTENT[99:]), id="two streams, as by pbzip2"),
        pytest.param("xz", lzma.compress(CONTENT), id="xz"),
        pytest.param(
            "xz",
            lzma.compress(CONTENT[:99]) + bytes(8) + lzma.compress(CONTENT[99:]) + bytes(4),
            id="two streams with padding",
        ),
    ],
)
def test_content_of_one_and_several_streams(kind: str, compressed: bytes) -> None:
    """Streams support going backwards, because reading tars seeks."""
    file = io.BufferedReader(CompressedStreams(io.BytesIO(compressed), kind))

    assert file.read() == CONTENT
    assert file.read(1) == b""
    for position in (10, 300_000, 99, 999_999, 2_000_000):
        file.seek(position)
        assert file.read(5) == CONTENT[position : position + 5]


def read_xz(compressed: bytes) -> bytes | None:
    return CompressedStreams(io.BytesIO(compressed), "xz").read()


def test_a_dictionary_that_needs_much_memory_is_refused() -> None:
    """The dictionary's size is known before unpacking any content."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "mf": lzma.MF_HC3, "nice_len": 16, "dict_size": 2**28}]
    compressed = lzma.compress(b"a", filters=filters)

    with pytest.raises(CompressedStreamError, match="it takes more than 192 MiB of memory to unpack"):
        read_xz(compressed)


def test_the_largest_preset_of_xz_is_read() -> None:
    assert read_xz(lzma.compress(b"a", preset=9)) == b"a"
