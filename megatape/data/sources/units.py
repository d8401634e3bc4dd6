"""Divides a source into units of work, the same on every machine."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from megatape.data.io.compression import is_compressed
from megatape.data.io.files import FileState, file_states
from megatape.errors import UserError

# Default unit size, about a minute of work for one core.
UNIT_BYTES = 64 * 2**20
# Minimum unit size by default, and source size up to which there is one unit.
LEAST_UNIT_BYTES = 4 * 2**20
SMALL_BYTES = 12 * 2**20
# Minimum number of units per worker, so that all workers end at about the same time.
UNITS_PER_WORKER = 4
# Maximum number of units, enough for 64 TiB. A server that reports more is faulty.
MAX_UNITS = 2**20


@dataclass(frozen=True)
class Unit:
    """Part of a source that one process reads in one go.

    Attributes:
        inputs: Files, URLs or the name of a data set, in order.
        num_bytes: Input size, for showing progress; 0 if unknown.
        begin: First byte to read of a single input. A line or row group belongs to the unit in which it begins. For a hub data
            set, the file number.
        end: End of these bytes or files. None: up to the end.
        split: Split of all documents. Empty: their texts decide.
        versions: `FileState.version` of each input when the source was divided. Empty: unknown.
    """

    inputs: tuple[str, ...]
    num_bytes: int
    begin: int = 0
    end: int | None = None
    split: str = ""
    versions: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = self.inputs[0]
        if len(self.inputs) > 1:
            text += f" and {len(self.inputs) - 1:,} more"
        if self.begin:
            text += f", from byte {self.begin:,} on"
        return text

    def difference(self, other: "Unit") -> str:
        """Return the first difference from another unit, with both values."""
        if self.inputs == other.inputs:
            for name, version, other_version in zip(self.inputs, self.versions, other.versions, strict=False):
                if version != other_version:
                    return f"{name} of version {version}, now {other_version}"
        return f"{self!r}, now {other!r}"

    def check_unchanged(self) -> None:
        """Raise UserError if a file has changed since the source was divided into units."""
        if not self.versions:
            return
        now = replace(self, versions=tuple(state.version for state in file_states(self.inputs)))
        if now != self:
            raise UserError(
                f"an input has changed while it was prepared: {self.difference(now)}. Give the same command again when it no "
                "longer changes"
            )


def default_unit_bytes(num_bytes: int, workers: int) -> int:
    """Return the unit size with which each worker gets several units. A small source is one unit, which is faster."""
    if workers == 1 or num_bytes < SMALL_BYTES:
        return UNIT_BYTES
    return min(max(num_bytes // (UNITS_PER_WORKER * workers), LEAST_UNIT_BYTES), UNIT_BYTES)


class _FileGroup:
    """Files collected for one unit."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._names: list[str] = []
        self._versions: list[str] = []

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str, state: FileState) -> None:
        self._names.append(name)
        self._versions.append(state.version)
        self.num_bytes += state.size

    def unit(self) -> Unit:
        """Return the unit of all files collected so far."""
        return Unit(tuple(self._names), self.num_bytes, versions=tuple(self._versions))


def divide_files(files: Iterable[str], divides: bool = False, unit_bytes: int | None = None) -> list[Unit]:
    """Divide files into units, combining small files.

    Args:
        files: File names, in order.
        divides: Whether to divide large uncompressed files into several units.
        unit_bytes: Maximum size of a unit with several files. None: UNIT_BYTES.
    """
    if unit_bytes is None:
        unit_bytes = UNIT_BYTES
    units: list[Unit] = []
    group = _FileGroup()
    files = list(files)
    for file, state in zip(files, file_states(files), strict=True):
        if len(group) and group.num_bytes + state.size > unit_bytes:
            units.append(group.unit())
            group = _FileGroup()
        if divides and state.size > unit_bytes and not is_compressed(file):
            if len(units) + state.size // unit_bytes > MAX_UNITS:
                raise UserError(
                    f"{file}: with its {state.size:,} bytes the source has more than {MAX_UNITS:,} units of {unit_bytes:,}: "
                    "check the length that the file system or the server announces, and prepare a larger source in parts"
                )
            units += _parts_of_file(file, state, unit_bytes)
            continue
        group.add(file, state)
    if len(group):
        units.append(group.unit())
    return units


def _parts_of_file(file: str, state: FileState, unit_bytes: int) -> list[Unit]:
    units = []
    for begin in range(0, state.size, unit_bytes):
        end = min(begin + unit_bytes, state.size)
        units.append(Unit((file,), end - begin, begin, end, versions=(state.version,)))
    return units
