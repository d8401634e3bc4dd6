"""Reads document tables from Parquet files, checking their content. table_writer.py lists the columns."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from megatape.data.io.isolated import IsolatedProcess, ProcessEnded
from megatape.errors import UserError

REQUIRED_COLUMNS = {"tokens": "int64", "bytes": "int64", "place": "string", "url": "string"}
# Tables from earlier versions have no hashes.
OPTIONAL_COLUMNS = {"hash": "uint64", "scores": "string"}
# Smallest valid value in each numeric column.
MINIMA = {"tokens": 1, "bytes": 0}
BATCH_ROWS = 2**14
REMEDY = "copy the folder again, or re-run its preparation"
# Idle child processes, reused because starting one takes a second.
_idle: list[IsolatedProcess] = []


class TableFile:
    """Document table.

    Args:
        path: Path of the Parquet file.

    Attributes:
        names: Column names.
        num_rows: Documents.

    Raises:
        UserError: The file is corrupted, or has other columns or types.
    """

    def __init__(self, path: Path) -> None:
        # The import takes a third of a second.
        from pyarrow.parquet import ParquetFile

        self._path = path
        with self._content_errors():
            self._file = ParquetFile(path)
            schema = self._file.schema_arrow
            self.names: list[str] = list(schema.names)
            types = dict(zip(schema.names, map(str, schema.types), strict=True))
        self.num_rows: int = self._file.metadata.num_rows
        known = REQUIRED_COLUMNS | OPTIONAL_COLUMNS
        missing = [name for name in REQUIRED_COLUMNS if name not in types]
        if missing or len(types) < len(self.names) or not types.keys() <= known.keys():
            raise UserError(f"{path}: corrupted, its columns are {', '.join(self.names)}, not {', '.join(known)}: {REMEDY}")
        for name, kind in types.items():
            if kind != known[name]:
                raise UserError(f"{path}: corrupted, column {name} has the type {kind:.80}, not {known[name]}: {REMEDY}")

    def read(self, columns: list[str] | None = None) -> Any:
        """Return these columns (None: all) as a pyarrow.Table. Raises UserError if the file is corrupted."""
        with self._content_errors():
            table = self._file.read(columns)
            self._check(table)
        return table

    def iter_batches(self, batch_size: int, columns: list[str] | None = None) -> Iterator[Any]:
        """Yield batches of rows as pyarrow.RecordBatch.

        Args:
            batch_size: Maximum rows per batch.
            columns: Column names; None: all.

        Raises:
            UserError: The file is corrupted.
        """
        batches = self._file.iter_batches(batch_size, columns=columns)
        while True:
            with self._content_errors():
                batch = next(batches, None)
                if batch is None:
                    return
                self._check(batch)
            yield batch

    def _check(self, rows: Any) -> None:
        """Check values. Raises UserError, or pyarrow's error for text that is not UTF-8."""
        from pyarrow import compute

        rows.validate(full=True)
        for name in rows.schema.names:
            if rows[name].null_count:
                raise UserError(f"{self._path}: corrupted, column {name} has nulls: {REMEDY}")
            if name in MINIMA:
                least = compute.min(rows[name]).as_py()
                if least is not None and least < MINIMA[name]:
                    raise UserError(f"{self._path}: corrupted, column {name} has {least}, less than {MINIMA[name]}: {REMEDY}")

    @contextmanager
    def _content_errors(self) -> Iterator[None]:
        """Convert errors about the file's content to UserError."""
        from pyarrow import ArrowException

        try:
            yield
        except (ArrowException, OSError, UnicodeDecodeError) as error:
            if getattr(error, "errno", None) is not None:
                # The disk failed, so the content may be fine.
                raise
            reason = " ".join(str(error).split())
            raise UserError(f"{self._path}: corrupted table of documents ({reason}): {REMEDY}") from error


def verify_table(path: Path) -> None:
    """Read a whole table in a child process, because reading a corrupted one may crash the process or fill the memory.

    Raises:
        UserError: The table is corrupted.
    """
    if _idle:
        child = _idle.pop()
    else:
        child = IsolatedProcess(_verified)
    try:
        list(child.ask(path))
    except ProcessEnded as end:
        raise UserError(
            f"{path}: cannot be read: the process reading it {end}: the table of documents is corrupted, so {REMEDY}, or the "
            "memory is too small"
        ) from None
    except BaseException:
        child.end()
        raise
    _idle.append(child)


def _verified(path: Path) -> Iterator[None]:
    """Read all rows of a table. Yields nothing."""
    for _ in TableFile(path).iter_batches(BATCH_ROWS):
        pass
    yield from ()
