"""Reads tokens from a data directory, a .bin file or a text file."""

from pathlib import Path

import numpy as np

from megatape.data.shards.stored_split import StoredSplit
from megatape.errors import MissingPath, UserError, flag
from megatape.lab.tasks.engine.model import ModelOutline

# Characters read per token, more than any text needs on average.
MAX_CHARACTERS = 64


def read_tokens(model: ModelOutline, path: Path, max_tokens: int) -> np.ndarray:
    """Read the first tokens of a text.

    Args:
        model: Outline of the model.
        path: Data directory (its validation split), .bin file or text file.
        max_tokens: Maximum number of tokens to read.

    Returns:
        Token ids, int64 [at most max_tokens].

    Raises:
        FileNotFoundError: The text is missing.
        UserError: The text has another tokenizer's ids, or cannot be read.
    """
    if path.is_dir():
        split = StoredSplit(path, "validation")
        tokens = split.stream(0, min(split.num_tokens, max_tokens))
        _check_tokenizer(model, split, tokens)
    elif not path.exists():
        raise MissingPath(f"{flag('data')} {path}: no such file or folder: give a text file, a .bin file or a data directory")
    elif path.suffix == ".bin":
        tokens = np.fromfile(path, np.uint16, max_tokens).astype(np.int64)
    elif not path.is_file():
        raise UserError(f"{flag('data')} {path} is a device or a pipe: give a text file, a .bin file or a folder")
    else:
        try:
            with path.open(encoding="utf-8") as file:
                # The file may be a huge corpus, so only its beginning is read.
                text = file.read(MAX_CHARACTERS * max_tokens)
        except UnicodeDecodeError as error:
            raise UserError(
                f"{flag('data')} {path} is not UTF-8 text ({error}): give a text file, a .bin file or a folder"
            ) from None
        tokens = np.array(model.tokenizer(text)["input_ids"][:max_tokens], np.int64)
    if tokens.size and tokens.max() >= model.vocab_size:
        raise UserError(
            f"{flag('data')} {path} has the token id {tokens.max()}, but {model.name} has {model.vocab_size} tokens: "
            "give text of the model's tokenizer"
        )
    return tokens


def _check_tokenizer(model: ModelOutline, split: StoredSplit, tokens: np.ndarray) -> None:
    """Raise UserError if the model's tokenizer gives the first document other ids than the data has."""
    document = tokens
    if document.size and document[0] == split.bos_id:
        document = document[1:]
    ends = np.flatnonzero(document == split.eos_id)
    if ends.size:
        document = document[: ends[0]]

    ours = document.tolist()
    text = split.tokenizer().decode(ours)
    theirs = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    # The document may be cut off within its last token.
    if ours[:-1] != theirs[: len(ours) - 1]:
        raise UserError(
            f"{flag('data')} was prepared with another tokenizer than that of {model.name}, which gives its text other ids: "
            "give a text file, or data that was prepared with the model's"
        )
