"""Reads tokenizers from disk: a user's, and those stored in data directories and checkpoints."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from megatape.data.tokenizers.huggingface import JsonTokenizer
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer
from megatape.data.tokenizers.tokenizer import AUXILIARY_FILES, FILES, JSON_FILE, SENTENCEPIECE_FILE, Tokenizer
from megatape.errors import MissingPath, UserError, path_errors


@path_errors()
def load_tokenizer(path: Path) -> Tokenizer:
    """Read a SentencePiece model, a tokenizer.json with the auxiliary files next to it, or a folder of transformers.

    In a folder, tokenizer.json takes precedence, as in transformers: only it can be exported file by file.

    Raises:
        FileNotFoundError: There is no such file or folder.
        UserError: The file is no tokenizer, or tokenizer.json and tokenizer.model in the folder differ.
    """
    if path.is_dir():
        return _in_folder(path)
    if not path.is_file():
        raise MissingPath(
            f"{path}: no such tokenizer: check the path, give a folder of transformers, or train one with `megatape data "
            "tokenizer`"
        )
    content = path.read_bytes()
    if not content.lstrip().startswith(b"{"):
        return SentencePieceTokenizer(content, str(path))
    return json_tokenizer(path)


def json_tokenizer(path: Path) -> JsonTokenizer:
    """Read a tokenizer.json and the auxiliary files next to it. Raises FileNotFoundError or UserError."""
    auxiliary = _read(path.parent, (name for name in AUXILIARY_FILES if name != SENTENCEPIECE_FILE))
    return JsonTokenizer({JSON_FILE: path.read_bytes()} | auxiliary, str(path.parent), path.name)


def stored_tokenizer(directory: Path, hashes: Mapping[str, str]) -> Tokenizer:
    """Read a stored tokenizer.

    Args:
        directory: Folder with its files.
        hashes: File name -> sha256.

    Raises:
        FileNotFoundError: A file is missing.
        UserError: A file has another hash.
    """
    files = {}
    for name, expected in hashes.items():
        path = directory / name
        if not path.is_file():
            raise MissingPath(f"{path}: missing, a file of the tokenizer: copy it again")
        files[name] = path.read_bytes()
        actual = hashlib.sha256(files[name]).hexdigest()
        if actual != expected:
            raise UserError(f"{path}: sha256 is {actual}, expected {expected}: the file was changed, copy the original again")
    return tokenizer_of(files, directory)


def tokenizer_of(files: Mapping[str, bytes], directory: Path) -> Tokenizer:
    """Return the tokenizer in these files of `directory`. Raises UserError if they contain none."""
    if JSON_FILE in files:
        return JsonTokenizer(files, str(directory))
    if SENTENCEPIECE_FILE not in files:
        raise UserError(
            f"{directory}: neither {JSON_FILE} nor {SENTENCEPIECE_FILE}, so it holds no tokenizer: give another folder"
        )
    return SentencePieceTokenizer(files[SENTENCEPIECE_FILE], str(directory / SENTENCEPIECE_FILE))


def _in_folder(folder: Path) -> Tokenizer:
    files = _read(folder, FILES)
    tokenizer = tokenizer_of(files, folder)
    if isinstance(tokenizer, JsonTokenizer) and SENTENCEPIECE_FILE in files:
        pieces = SentencePieceTokenizer(files[SENTENCEPIECE_FILE], str(folder / SENTENCEPIECE_FILE)).pieces()
        for token, piece in enumerate(pieces):
            if tokenizer.piece(token) != piece:
                raise UserError(
                    f"{folder}: token {token} is {piece!r} in {SENTENCEPIECE_FILE} and {tokenizer.piece(token)!r} in "
                    f"{JSON_FILE}. transformers reads {JSON_FILE}: give {folder / JSON_FILE} if the model was trained with "
                    f"it, else {folder / SENTENCEPIECE_FILE}"
                )
    return tokenizer


def _read(folder: Path, names: Iterable[str]) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
