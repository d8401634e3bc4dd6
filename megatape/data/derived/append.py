"""Appends the documents of other data directories to a data directory, in place."""

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from megatape.data.derived.directory_merger import DirectoryMerger
from megatape.data.derived.input_folder import InputFolder
from megatape.data.derived.merge_checks import check_inputs
from megatape.data.document_entries import INDEX_FILE
from megatape.data.shards.entries import Index
from megatape.data.shards.hashes import file_sha256
from megatape.data.shards.index import load_index, save_index
from megatape.data.shards.reading.reader import OnTokens
from megatape.errors import UserError, content_errors, path_errors
from megatape.utils.files.atomic import write_atomically
from megatape.utils.files.files import sync
from megatape.utils.files.full_disk import name_path
from megatape.utils.files.json_files import read_json
from megatape.utils.files.locks import locked

# Names in the directory while appending.
LOCK = "append.lock"
STAGING = "append.partial"
# File in STAGING listing the folders being appended.
COMMAND = "command.json"

# Real path of each appended folder and the sha256 of its index, which identify an append.
Command = list[list[str]]


@path_errors()
def append(folders: Sequence[Path], directory: Path, progress: OnTokens = lambda tokens: None) -> Index:
    """Append the documents of other data directories to `directory`, in place.

    Existing files stay the same and the index is replaced last, so a run using the directory can keep reading. After an error,
    the directory is unchanged. If the process is killed once all files are on disk, the next call finishes the append, and does
    nothing else if it names the same folders.

    Args:
        folders: Data directories with the same tokenizer as `directory`.
        directory: Data directory to change.
        progress: Called repeatedly with the number of tokens read since the last call.

    Returns:
        The index.

    Raises:
        UserError, FileNotFoundError: A folder is missing, corrupted or given twice, or does not fit the first one.
    """
    load_index(directory)
    staging = _Staging(directory)
    with locked(directory / LOCK, remove=True):
        command = _command(folders)
        if staging.finish() == command:
            return load_index(directory)
        staging.path.mkdir()
        try:
            index = _merged(folders, directory, staging.path, progress)
            staging.commit(index, command)
        except BaseException as error:
            staging.undo()
            name_path(error, directory)
            raise
    return index


def _command(folders: Sequence[Path]) -> Command:
    command = []
    for folder in folders:
        # Merging reports folders without an index.
        if (folder / INDEX_FILE).is_file():
            command.append([os.path.realpath(folder), file_sha256(folder / INDEX_FILE)])
    return command


def _merged(folders: Sequence[Path], directory: Path, target: Path, progress: OnTokens) -> Index:
    """Link the files of all folders into `target`. Returns the index of the extended directory."""
    inputs = [InputFolder.open(folder) for folder in (directory, *folders)]
    check_inputs(inputs, links_shards=True)
    first, *others = inputs
    merger = DirectoryMerger(target, progress, {})
    merger.add_in_place(first)
    for folder in others:
        merger.add(folder)
    return replace(merger.index(), document_files=first.index.document_files)


class _Staging:
    """Folder collecting the new files and the new index until all of them are on disk.

    Args:
        directory: Data directory to change.

    Attributes:
        path: Path of the folder.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / STAGING
        self._directory = directory

    def commit(self, index: Index, command: Command) -> None:
        """Move the new files and the index into place.

        Args:
            index: Index of the extended directory.
            command: This append, for the next call to recognize if this one is killed.

        Raises:
            UserError: A new file would replace an existing one.
        """
        listed = set(load_index(self._directory).files)
        repeated = listed.intersection(os.listdir(self.path))
        if repeated:
            raise UserError(
                f"{self._directory} lists {min(repeated)} already, which would be replaced: merge into a new folder"
            )
        write_atomically(self.path / COMMAND, json.dumps(command).encode())
        # From here on, the next call finishes this append if it is killed.
        save_index(index, self.path)
        sync(self.path)
        self.finish()

    def finish(self) -> Command | None:
        """Move the new files and the index into place, or remove them if the append was killed before writing all of them.

        Returns:
            The finished append, or None if there was none to finish.

        Raises:
            UserError: The folder is corrupted or a link.
        """
        if self.path.is_symlink():
            raise UserError(f"{self.path} is a link, through which nothing is written: remove it")
        if not (self.path / INDEX_FILE).is_file():
            shutil.rmtree(self.path, ignore_errors=True)
            return None
        with content_errors(f"{self.path}: corrupted", "remove it, and append again"):
            command: Command = read_json(self.path / COMMAND)
        load_index(self.path)
        for name in sorted(os.listdir(self.path)):
            if name not in (COMMAND, INDEX_FILE):
                (self.path / name).rename(self._directory / name)
        sync(self._directory)
        (self.path / INDEX_FILE).rename(self._directory / INDEX_FILE)
        sync(self._directory)
        shutil.rmtree(self.path, ignore_errors=True)
        return command

    def undo(self) -> None:
        """Remove the new files. The index must not be in place yet."""
        with suppress(OSError, UserError):
            new_files = set(load_index(self.path).files)
            old_files = set(load_index(self._directory).files)
            for name in new_files - old_files:
                (self._directory / name).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)
