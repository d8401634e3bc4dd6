"""A list of the files that a source should have, as `sha256sum`, `md5sum` or `stat -c "%s %n"` prints it."""

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from megatape.data.io.files import NUM_REQUESTS, file_states, is_url, open_file
from megatape.data.sources.source import Source
from megatape.errors import UserError, path_errors

LINE = re.compile(r"(?i)([0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64}|\d{1,18})\s+\*?(.+)")  # checksum or size, and name
ALGORITHMS = {32: "md5", 40: "sha1", 64: "sha256"}  # by the number of digits; fewer are a size in bytes
NUM_SHOWN = 100


@path_errors()
def check_expected(source: Source, path: Path) -> None:
    """Compare the files of a source with a list. A name in the list is the end of a file's path or URL.

    Args:
        source: The source. If it is partial, files may be missing.
        path: The list.

    Raises:
        UserError: A file is missing, is not in the list, or has another size or checksum; all such are named.
    """
    if source.reader.takes != "paths":
        raise UserError(f"expect {path}: `source` {source.kind} has no files: remove it")
    listed = _read(path)
    files = list(dict.fromkeys(name for unit in source.units() for name in unit.inputs))
    entries = {file: next((end for end in _ends(file) if end in listed), "") for file in files}
    with ThreadPoolExecutor(NUM_REQUESTS) as threads:
        faults = list(filter(None, threads.map(lambda file: _fault(file, listed.get(entries[file], "")), files)))
    if not source.partial:
        faults += [f"{name} is missing" for name in listed.keys() - set(entries.values())]
    if faults:
        more = f"; and {len(faults) - NUM_SHOWN:,} more" if len(faults) > NUM_SHOWN else ""
        raise UserError(
            f"expect {path}: {len(faults):,} files differ: {'; '.join(sorted(faults)[:NUM_SHOWN])}{more}. Download them again, "
            "or correct the list"
        )


def _read(path: Path) -> dict[str, str]:
    """Checksums and sizes by name. Raises UserError for a line that is none."""
    listed = {}
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
        entry = LINE.fullmatch(line.strip())
        if entry is None and line.strip():
            raise UserError(f"expect {path}:{number}: {line[:80]!r} has no checksum or size and no name: correct the line")
        if entry:
            listed[str(PurePosixPath(entry[2]))] = entry[1].lower()
    return listed


def _ends(file: str) -> list[str]:
    """The ends of a path that a list may have, the longest first."""
    parts = PurePosixPath(file if is_url(file) else Path(file).absolute()).parts
    return [str(PurePosixPath(*parts[begin:])) for begin in range(len(parts))]


def _fault(file: str, expected: str) -> str:
    """Difference of a file, empty if there is none."""
    if not expected:
        return f"{file} is not in the list"
    algorithm = ALGORITHMS.get(len(expected))
    if algorithm is None:
        size = file_states([file])[0].size
        return "" if size == int(expected) else f"{file} has {size} bytes, not {int(expected)}"
    with open_file(file) as content:
        found = hashlib.file_digest(content, algorithm).hexdigest()  # type: ignore[arg-type]  # BinaryIO has readinto
    return "" if found == expected else f"{file} has the {algorithm} {found}, not {expected}"
