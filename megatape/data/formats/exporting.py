"""Exports a data directory as token files of another system."""

from pathlib import Path

from megatape.data.formats.documents import divided
from megatape.data.formats.token_format import TokenFormat
from megatape.data.shards.entries import SPLITS, Index, token_dtype
from megatape.data.shards.index import load_index, store_tokenizer
from megatape.data.shards.reading.reader import OnTokens, SplitReader
from megatape.data.tokenizers.files import stored_tokenizer
from megatape.errors import UserError, path_errors
from megatape.registry import TOKEN_FORMATS
from megatape.utils.files.atomic import new_folder


@path_errors()
def export_data(directory: Path, name: str, output: Path, progress: OnTokens = lambda tokens: None) -> Index:
    """Write a data directory as output/train... and output/validation..., with the tokenizer's files, all or nothing.

    Args:
        directory: Data directory.
        name: Format name in TOKEN_FORMATS.
        output: New folder.
        progress: Called repeatedly with the number of tokens read since the last call.

    Returns:
        The data directory's index.

    Raises:
        FileNotFoundError: A file of the data is missing.
        UserError: The data are corrupted, or have prompts and answers.
        FileExistsError: `output` exists.
    """
    index = load_index(directory)
    if index.answers:
        raise UserError(f"{directory} holds prompts and answers: format {name} cannot tell them apart, so it is not exported")
    writer: TokenFormat = TOKEN_FORMATS[name].load()()
    tokenizer = stored_tokenizer(directory, index.tokenizer.files)
    with new_folder(output) as folder:
        for split in SPLITS:
            members = SplitReader(directory, index, split).members(progress)
            documents = divided(members, tokenizer.eos_id, directory)
            writer.write(folder / split, documents, token_dtype(tokenizer.vocab_size))
        store_tokenizer(tokenizer, folder)
    return index
