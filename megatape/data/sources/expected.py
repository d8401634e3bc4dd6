"""Compares the files of a source with a list printed by `sha256sum`, `md5sum` or `stat -c "%s %n"`."""

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from megatape.data.io.files import NUM_REQUESTS, file_states, is_url, open_file
from megatape.data.sources.source import Source
from megatape.errors import UserError, flag, path_errors

# Checksum or size, and name.
LINE = re.compile(r"(?i)([0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64}|\d{1,18})\s+\*?(.+)")
# Number of digits -> algorithm of a checksum. Other numbers of digits mean a size in bytes.
ALGORITHMS = {32: "md5", 40: "sha1", 64: "sha256"}
# Maximum number of differences in a message.
NUM_SHOWN = 100


@path_errors()
def check_expected(source: Source, path: Path) -> None:
    """Compare a source's files with a list. A listed name matches the end of a path or URL.

    Args:
        source: Source of the files. If it is partial, files may be missing.
        path: Path of the list.

    Raises:
        UserError: Files are missing, not listed, or have another size or checksum.
    """
    if source.reader.takes != "paths":
        raise UserError(f"{flag('expect')} {path}: {flag('source')} {source.kind} has no files: remove it")
    listed = _read(path)
    # File -> its name in the list.
    names: dict[str, str | None] = {}
    for unit in source.units():
        for file in unit.inputs:
            names[file] = _listed_name(file, listed)

    def difference_of(file: str) -> str | None:
        name = names[file]
        if name is None:
            return f"{file} is not in the list"
        return _difference(file, listed[name])

    with ThreadPoolExecutor(NUM_REQUESTS) as threads:
        results = threads.map(difference_of, names)
        differences = [difference for difference in results if difference is not None]
    if not source.partial:
        differences += [f"{name} is missing" for name in listed.keys() - set(names.values())]
    if differences:
        text = "; ".join(sorted(differences)[:NUM_SHOWN])
        if len(differences) > NUM_SHOWN:
            text += f"; and {len(differences) - NUM_SHOWN:,} more"
        raise UserError(
            f"{flag('expect')} {path}: {len(differences):,} files differ: {text}. Download them again, or correct the list"
        )


def _read(path: Path) -> dict[str, str]:
    """Return checksums and sizes by name. Raises UserError for a malformed line."""
    listed = {}
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
        if not line.strip():
            continue
        entry = LINE.fullmatch(line.strip())
        if entry is None:
            raise UserError(
                f"{flag('expect')} {path}:{number}: {line[:80]!r} has no checksum or size and no name: correct the line"
            )
        listed[str(PurePosixPath(entry[2]))] = entry[1].lower()
    return listed


def _listed_name(file: str, listed: dict[str, str]) -> str | None:
    """Return the longest listed name with which a file's path or URL ends, or None if it is not listed."""
    path = file
    if not is_url(file):
        path = str(Path(file).absolute())
    parts = PurePosixPath(path).parts
    for begin in range(len(parts)):
        name = str(PurePosixPath(*parts[begin:]))
        if name in listed:
            return name
    return None


def _difference(file: str, expected: str) -> str | None:
    """Return the difference of a file from its listed checksum or size, or None if they agree."""
    algorithm = ALGORITHMS.get(len(expected))
    if algorithm is None:
        (state,) = file_states([file])
        if state.size == int(expected):
            return None
        return f"{file} has {state.size} bytes, not {int(expected)}"
    with open_file(file) as content:
        checksum = hashlib.file_digest(content, algorithm).hexdigest()  # type: ignore[arg-type]  # BinaryIO has readinto
    if checksum == expected:
        return None
    return f"{file} has the {algorithm} {checksum}, not {expected}"
