"""Columns of Arrow. `pyarrow.array` and `to_numpy` are not used, because they spend half a second importing pandas."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pyarrow import RecordBatch


def number_column(values: Sequence[int] | np.ndarray, kind: str) -> Any:
    """Return numbers as a pyarrow.Array, given the numpy name of their type."""
    # The import takes a third of a second, here and below.
    import pyarrow

    numbers = np.ascontiguousarray(values, kind)
    return pyarrow.Array.from_buffers(pyarrow.type_for_alias(kind), numbers.size, [None, pyarrow.py_buffer(numbers)])


def text_column(values: Sequence[str]) -> Any:
    """Return texts as a pyarrow.StringArray."""
    import pyarrow

    builder = pyarrow.lib.StringBuilder()
    builder.append_values(list(values))
    return builder.finish()


def list_column(values: np.ndarray, lengths: np.ndarray) -> Any:
    """Return consecutive runs of numbers as a pyarrow.LargeListArray.

    Args:
        values: Numbers of all runs.
        lengths: Length of each run, int64 [runs].
    """
    import pyarrow

    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return pyarrow.LargeListArray.from_arrays(number_column(offsets, "int64"), number_column(values, values.dtype.name))


def numbers_of(column: Any) -> np.ndarray:
    """Return a column of numbers, or the numbers in all lists of a column, as an array that shares its memory."""
    import pyarrow

    if pyarrow.types.is_large_list(column.type):
        column = column.flatten()
    # Names of types are those of numpy.
    kind = np.dtype(str(column.type))
    if not len(column):
        return np.empty(0, kind)
    _, buffer = column.buffers()
    return np.frombuffer(buffer, kind, len(column), column.offset * kind.itemsize)


def pack_rows(rows: "RecordBatch") -> memoryview:
    """Return rows in the stream format of Arrow, with their schema."""
    import pyarrow

    content = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(content, rows.schema) as stream:
        stream.write_batch(rows)
    return memoryview(content.getvalue())


def unpack_rows(content: bytes) -> "RecordBatch":
    """Return the rows of `pack_rows`. Verify the content first, because pyarrow may crash on damaged content."""
    import pyarrow

    return pyarrow.ipc.open_stream(content).read_next_batch()
