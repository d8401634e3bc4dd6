"""Files with checksums, for first-pass results: a bit flipping between the passes must not change the shards.

The shards would get checksums of the changed tokens, so nothing could detect the fault later.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import xxhash

from megatape.data.cleaning.stored.corruption import corrupted_first_pass
from megatape.errors import content_errors
from megatape.utils.files.files import open_regular
from megatape.utils.files.json_files import read_json
from megatape.utils.values.validation import as_type

# Lists the XXH3 of each file, 32 hexadecimal digits.
CHECKSUMS = "checksums.json"
CHUNK_BYTES = 2**20


class ChecksummedFiles:
    """Writes files into a folder. Checksums are computed from the content in memory, to detect wrong writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hashes: dict[str, Any] = {}

    def append(self, name: str, content: bytes | memoryview) -> None:
        """Append content, which may be empty, to a file. Creates the file if it is missing."""
        with (self._folder / name).open("ab") as file:
            file.write(content)
        self._hashes.setdefault(name, xxhash.xxh3_128()).update(content)

    def close(self) -> None:
        """Write the checksums."""
        checksums = {name: hasher.hexdigest() for name, hasher in self._hashes.items()}
        (self._folder / CHECKSUMS).write_text(json.dumps(checksums), encoding="utf-8")


def check_files(folder: Path, names: Collection[str] = ()) -> None:
    """Check some files written by ChecksummedFiles, by default all. Folders of earlier versions have no checksums.

    Raises:
        UserError: A file does not have the content that was written.
        FileNotFoundError: A file is missing.
    """
    path = folder / CHECKSUMS
    if not path.exists():
        # Raises FileNotFoundError if another process has removed the whole folder.
        folder.stat()
        return
    with content_errors(f"{path}: corrupted", f"remove {folder}, and the same command prepares it again"):
        checksums = as_type(read_json(path), dict[str, str])
    for name, expected in checksums.items():
        if names and name not in names:
            continue
        hasher = xxhash.xxh3_128()
        with open_regular(folder / name) as file:
            while True:
                chunk = file.read(CHUNK_BYTES)
                if not chunk:
                    break
                hasher.update(chunk)
        if hasher.hexdigest() != expected:
            raise corrupted_first_pass(folder / name)
