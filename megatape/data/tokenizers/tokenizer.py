"""Interface of tokenizers. sentencepiece.py and huggingface.py implement it, and files.py reads either from disk."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import numpy as np

from megatape.errors import UserError, content_errors

SENTENCEPIECE_FILE = "tokenizer.model"
JSON_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
MAP_FILE = "special_tokens_map.json"
GENERATION_FILE = "generation_config.json"
TEMPLATE_FILE = "chat_template.jinja"
# Files kept beside an imported tokenizer.json, and exported with it.
AUXILIARY_FILES = (
    CONFIG_FILE,
    MAP_FILE,
    GENERATION_FILE,
    "added_tokens.json",
    TEMPLATE_FILE,
    "vocab.json",
    "merges.txt",
    SENTENCEPIECE_FILE,
)
# All names that a tokenizer's file can have.
FILES = (JSON_FILE, *AUXILIARY_FILES)


def check_file_name(name: str) -> str:
    """Check the name of a tokenizer's file. It may come from a downloaded index.

    Checkpoints and exports store a tokenizer's files beside their own, so another name could replace weights or a state.

    Args:
        name: Name of the file.

    Returns:
        The same name.

    Raises:
        UserError: Tokenizers have no file of this name.
    """
    if name not in FILES:
        raise UserError(f"not a file of a tokenizer, which are {', '.join(FILES)}")
    return name


class Tokenizer(ABC):
    """Converts texts to token ids and back. Special tokens written out in a text remain text.

    Attributes:
        files: Name -> content of every file to keep with data, checkpoints and exports. The first file decides all ids.
        origin: Source of the files, for errors.
        vocab_size: Largest id plus one.
        bos_id: First token of documents and prompts, or None if they begin with their text.
        eos_id: Last token of documents.
        num_threads: Number of threads that encode a list of documents. None: one for each core.

    Raises:
        UserError: Tokenizers have no file of one of these names.
    """

    vocab_size: int
    bos_id: int | None
    eos_id: int
    num_threads: int | None = None

    def __init__(self, files: Mapping[str, bytes], origin: str) -> None:
        for name in files:
            with content_errors(f"{origin}: {name!r}", "remove it"):
                check_file_name(name)
        self.files = files
        self.origin = origin

    @property
    def file(self) -> str:
        """Name of the file that decides all ids."""
        return next(iter(self.files))

    @property
    def hashes(self) -> dict[str, str]:
        """Name -> sha256 (hexadecimal) of every file."""
        return {name: hashlib.sha256(content).hexdigest() for name, content in self.files.items()}

    @property
    def sha256(self) -> str:
        """sha256 of the file that decides all ids."""
        return self.hashes[self.file]

    @property
    def begin(self) -> list[int]:
        """First ids of documents and prompts: `bos_id`, or none."""
        if self.bos_id is None:
            return []
        return [self.bos_id]

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text` alone."""

    def encode_documents(self, texts: list[str]) -> list[np.ndarray]:
        """Encode texts as `<s> text </s>`, int32 [tokens] each. Tokenizers without `<s>` leave it out."""
        return [np.array([*self.begin, *self.encode(text), self.eos_id], np.int32) for text in texts]

    @abstractmethod
    def piece(self, token: int) -> str | None:
        """Return the name of a token in the file, or None if there is no such id."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids. Control tokens are dropped, and a truncated multi-byte character becomes U+FFFD."""
