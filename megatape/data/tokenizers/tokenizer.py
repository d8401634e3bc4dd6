"""Interface of tokenizers. sentencepiece.py and huggingface.py implement it, and files.py reads both from disk."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np

from megatape.errors import UserError, content_errors

SENTENCEPIECE_FILE = "tokenizer.model"
JSON_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
MAP_FILE = "special_tokens_map.json"
GENERATION_FILE = "generation_config.json"
TEMPLATE_FILE = "chat_template.jinja"
# Files stored next to an imported tokenizer.json, and exported with it.
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
# All valid names of a tokenizer's files.
FILES = (JSON_FILE, *AUXILIARY_FILES)


def check_file_name(name: str) -> str:
    """Check the name of a tokenizer's file, which may come from a downloaded index. Returns the name.

    Checkpoints and exports store a tokenizer's files next to their own, so another name could overwrite weights.

    Raises:
        UserError: Tokenizers have no file with this name.
    """
    if name not in FILES:
        raise UserError(f"not a file of a tokenizer, which are {', '.join(FILES)}")
    return name


class EncodedDocuments(NamedTuple):
    """Token ids of several documents, in one array.

    Attributes:
        ids: Ids of all documents in order, [tokens]. A tokenizer returns int32, and batches have the type of the shards.
        lengths: Tokens per document, int64 [documents].
    """

    ids: np.ndarray
    lengths: np.ndarray

    @classmethod
    def join(cls, documents: Sequence[np.ndarray]) -> Self:
        """Join the ids of documents, of which there is at least one."""
        return cls(np.concatenate(documents), np.array([ids.size for ids in documents]))

    def document(self, number: int) -> np.ndarray:
        """Return the ids of one document."""
        begin = int(self.lengths[:number].sum())
        return self.ids[begin : begin + int(self.lengths[number])]


class Tokenizer(ABC):
    """Converts texts to token ids and back. Special tokens spelled out in a text remain text.

    Attributes:
        files: File name -> content, to store with data, checkpoints and exports. The first file decides all ids.
        origin: Source of the files, for errors.
        vocab_size: Largest id plus one.
        bos_id: First token of documents and prompts, or None if they begin with their text.
        eos_id: Last token of documents.
        num_threads: Number of threads for encoding a list of documents. None: one per core.

    Raises:
        UserError: A file name is invalid.
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
        """Name of the file deciding all ids."""
        return next(iter(self.files))

    @property
    def hashes(self) -> dict[str, str]:
        """File name -> sha256 in hexadecimal digits."""
        return {name: hashlib.sha256(content).hexdigest() for name, content in self.files.items()}

    @property
    def sha256(self) -> str:
        """sha256 of the file deciding all ids."""
        return self.hashes[self.file]

    @property
    def begin(self) -> list[int]:
        """Ids at the beginning of documents and prompts: `bos_id`, or none."""
        if self.bos_id is None:
            return []
        return [self.bos_id]

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""

    def encode_documents(self, texts: list[str]) -> list[np.ndarray]:
        """Encode texts as `<s> text </s>`, int32 [tokens] each. Tokenizers without `<s>` omit it."""
        return [np.array([*self.begin, *self.encode(text), self.eos_id], np.int32) for text in texts]

    @abstractmethod
    def piece(self, token: int) -> str | None:
        """Return a token's name in the file, or None if there is no such id."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids, dropping control tokens. A truncated multi-byte character becomes U+FFFD."""
