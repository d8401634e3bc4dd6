"""Merges data directories into a new one."""

from collections.abc import Sequence
from pathlib import Path

from megatape.data.derived.directory_merger import DirectoryMerger, shard_writers
from megatape.data.derived.input_folder import InputFolder
from megatape.data.derived.merge_checks import check_inputs
from megatape.data.shards.entries import Index
from megatape.data.shards.hashes import check_file
from megatape.data.shards.index import save_index
from megatape.data.shards.reading.reader import OnTokens
from megatape.data.shards.writer import SplitWriter
from megatape.errors import path_errors
from megatape.utils.files.atomic import new_folder
from megatape.utils.files.files import link_file


@path_errors()
def merge(
    folders: Sequence[Path], output: Path, shard_tokens: int | None = None, progress: OnTokens = lambda tokens: None
) -> Index:
    """Write the data directory `output` with the documents of others, in order, all or nothing.

    Args:
        folders: Data directories with the same tokenizer.
        output: New folder.
        shard_tokens: Maximum tokens per shard, to write new shards in the current format. None: link the shards.
        progress: Called repeatedly with the number of tokens read since the last call.

    Returns:
        The index.

    Raises:
        UserError, FileNotFoundError: A folder is missing, corrupted or given twice, or does not fit the first one.
        FileExistsError: `output` exists.
    """
    with new_folder(output) as new:
        inputs = [InputFolder.open(folder) for folder in folders]
        check_inputs(inputs, links_shards=shard_tokens is None)
        first = inputs[0]
        writers: dict[str, SplitWriter] = {}
        if shard_tokens is not None:
            writers = shard_writers(new, first.index, shard_tokens)
        merger = DirectoryMerger(new, progress, writers)
        for folder in inputs:
            merger.add(folder)
        index = merger.index()
        for name, sha256 in index.tokenizer.files.items():
            check_file(first.path / name, sha256)
            link_file(first.path / name, new / name)
        save_index(index, new)
    return index
