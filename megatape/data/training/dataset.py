"""A prepared split as one flat stream of tokens, cut into samples of a length chosen at training time."""

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from megatape.data.shards.cache import CacheFolder
from megatape.data.shards.folder import open_folder
from megatape.data.shards.index import INDEX_FILE, SPLITS
from megatape.data.shards.reader import SplitReader
from megatape.data.tokenizers.files import stored_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.order import sample_index
from megatape.data.training.window import WindowOrder
from megatape.errors import UserError
from megatape.targets import IGNORE_INDEX


@dataclass(frozen=True)
class Sample:
    """N tokens and what a model learns from them.

    tokens           int64 [N]
    targets          int64 [N], the next token of each, or IGNORE_INDEX
    document_starts  int64 [N], the index of the first token of each token's document; None: documents see each other
    """

    tokens: np.ndarray
    targets: np.ndarray
    document_starts: np.ndarray | None


class Dataset(ABC):
    """One split and a way to cut it into samples.

    directory: its path or URL. cache: see SplitReader. window: 0, or how many shards training mixes at a time (WindowOrder); in
    subclasses that take one no sample needs two shards then.
    Attributes: sequence_length (N), num_samples, num_tokens, tokenizer_entry (of the index), vocab_size, tokenizer_hash
    (sha256), unigram_entropy (nats), bos_id (None: documents begin with their text), eos_id, answers (None: whole documents are
    learned), fingerprint (sha256 over the content of the split and its tokenizer).
    Raises UserError or FileNotFoundError if the data directory is missing or corrupted, or N does not fit the split.
    """

    num_samples: int

    def __init__(
        self, directory: str | Path, split: str, sequence_length: int, cache: CacheFolder | None = None, window: int = 0
    ):
        if split not in SPLITS:
            raise UserError(f"split is {split!r}: choose one of {', '.join(SPLITS)}")
        self._name = f"split {split} of {directory}"
        self._folder = open_folder(directory, cache)
        index = self._folder.index()
        self.tokenizer_entry = index.tokenizer
        content = index.splits[split]
        self.sequence_length = sequence_length
        self.num_tokens = content.tokens
        self.vocab_size = index.tokenizer.vocab_size
        self.bos_id = index.tokenizer.bos_id
        self.eos_id = index.tokenizer.eos_id
        self.tokenizer_hash = index.tokenizer.sha256
        self.unigram_entropy = content.unigram_entropy
        self.answers = index.answers.get(split)
        identity = json.dumps([self.tokenizer_hash, asdict(content)], sort_keys=True)
        self.fingerprint = hashlib.sha256(identity.encode()).hexdigest()
        self._reader = SplitReader(self._folder.origin, index, split, cache)
        tokens = [member.tokens for shard in content.shards for member in shard.members]
        self._ends = np.cumsum(tokens)  # of each member, in the stream
        self._starts = self._ends - tokens
        self._shards = content.shards
        self._shard_ends = np.cumsum([sum(member.tokens for member in shard.members) for shard in content.shards])
        self._order: WindowOrder | None = None  # set by those that take a window
        self._window = -1  # that was read last
        if cache is not None and cache.max_bytes is not None:
            self._check_room(cache.max_bytes, window)

    def stream(self, begin: int, end: int) -> np.ndarray:
        """Tokens [begin, end) of the split, int64. Raises IndexError outside of it."""
        if not 0 <= begin <= end <= self.num_tokens:
            raise IndexError(f"tokens {begin} to {end} of {self.num_tokens}")
        tokens = np.empty(end - begin, np.int64)
        self._fill(tokens, begin)
        return tokens

    @abstractmethod
    def sample(self, index: int) -> Sample:
        """Sample `index`. Raises IndexError outside [0, num_samples)."""

    @property
    def sizes(self) -> dict[str, int]:
        """The samples of the one corpus, as a mixture has them of each."""
        return {"": self.num_samples}

    def located(self, place: int, seed: int) -> tuple[str, int]:
        """The corpus, "" since there is one, and the index of the sample that training takes after `place` others."""
        if self._order is None:
            return "", sample_index(place, self.num_samples, seed)
        return "", self._order.locate(place, seed)[0]

    def training_sample(self, place: int, seed: int) -> Sample:
        """The sample that training takes after `place` others, over all epochs."""
        if self._order is None:
            return self.sample(sample_index(place, self.num_samples, seed))
        index, window = self._order.locate(place, seed)
        if window != self._window:
            self._window = window
            self._reader.expect([*self._order.shards(window, seed), *self._order.shards(window + 1, seed)])
        return self.sample(index)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the data.

        Raises UserError or FileNotFoundError if its files are not those that the index lists, or if the index has other ids of
        special tokens, with which documents would begin and end elsewhere.
        """
        entry = self.tokenizer_entry
        self._folder.fetch(*entry.files)
        tokenizer = stored_tokenizer(self._folder.directory, entry.files)
        for name in ("vocab_size", "bos_id", "eos_id"):
            if (recorded := getattr(entry, name)) != (found := getattr(tokenizer, name)):
                raise UserError(
                    f"{self._folder.origin}/{INDEX_FILE}: corrupted, {name} is {recorded}, but {found} by {entry.file}: copy "
                    "it again or re-run the preparation"
                )
        return tokenizer

    def _check(self, index: int) -> None:
        if not 0 <= index < self.num_samples:
            raise IndexError(f"sample {index} of {self.num_samples}")

    def _check_room(self, max_bytes: int, window: int) -> None:
        """Raise UserError if the cache cannot hold a window and the next one, or without a window all shards."""
        sizes = sorted((shard.bytes for shard in self._shards), reverse=True)
        needed = sum(sizes[: 2 * window] if window else sizes)
        if needed > max_bytes:
            what = f"two windows of {window} shards" if window else "all shards, which training without data.window mixes"
            raise UserError(
                f"data.cache_bytes is {max_bytes:,}, but {what} of {self._name} take {needed:,}: raise it, or choose a smaller "
                "data.window"
            )

    def _fill(self, tokens: np.ndarray, begin: int) -> None:
        """Copy the stream from token `begin` on into `tokens`, across member boundaries."""
        member = int(np.searchsorted(self._ends, begin, side="right"))
        filled = 0
        while filled < tokens.size:
            first = begin + filled - int(self._starts[member])
            end = min(first + tokens.size - filled, int(self._ends[member] - self._starts[member]))
            tokens[filled : filled + end - first] = self._reader.member(member, first, end)
            filled += end - first
            member += 1


class TokenDataset(Dataset):
    """Sample i is tokens [i*N, i*N + N + 1) of the split's stream, across member, shard and document boundaries.

    Adjacent samples share one token, so every token is a target exactly once per epoch, except the stream's first token and
    the remainder shorter than N at its end.

    mask_documents: a document sees and predicts only itself, so its end has no target.
    window: if not 0, each shard is cut by itself, and what holds for the stream holds for each shard.
    """

    def __init__(
        self,
        directory: str | Path,
        split: str,
        sequence_length: int,
        mask_documents: bool = False,
        cache: CacheFolder | None = None,
        window: int = 0,
    ):
        super().__init__(directory, split, sequence_length, cache, window)
        self._mask_documents = mask_documents
        if not 1 <= sequence_length < self.num_tokens:
            raise UserError(
                f"sequence length is {sequence_length}, but {self._name} has {self.num_tokens} tokens and a "
                f"sample takes one more than its length: choose 1 to {self.num_tokens - 1}, or prepare more text"
            )
        # The stream in pieces that are cut by themselves: the first token of each, and its samples.
        self._piece_starts = np.r_[0, self._shard_ends if window else self.num_tokens]
        samples = (np.diff(self._piece_starts) - 1) // sequence_length
        self._piece_samples = np.r_[0, np.cumsum(samples)]
        self.num_samples = int(self._piece_samples[-1])
        if self.num_samples == 0:
            raise UserError(
                f"data.window cuts every shard by itself, and no shard of {self._name} holds a sample of {sequence_length} "
                "tokens: set it to 0"
            )
        self._order = WindowOrder(samples, window) if window else None

    def tokens(self, index: int) -> np.ndarray:
        """The tokens of sample `index` and the one after them, int64 [N + 1]. Raises IndexError outside [0, num_samples)."""
        self._check(index)
        tokens = np.empty(self.sequence_length + 1, np.int64)
        piece = int(np.searchsorted(self._piece_samples, index, side="right")) - 1
        self._fill(tokens, int(self._piece_starts[piece] + (index - self._piece_samples[piece]) * self.sequence_length))
        return tokens

    def sample(self, index: int) -> Sample:
        tokens = self.tokens(index)
        tokens, targets = tokens[:-1], tokens[1:]
        if not self._mask_documents:
            return Sample(tokens, targets, None)
        ends = tokens == self.eos_id
        begins = np.r_[False, ends[:-1]]
        document_starts = np.maximum.accumulate(np.where(begins, np.arange(tokens.size), 0))
        return Sample(tokens, np.where(ends, IGNORE_INDEX, targets), document_starts)


class DocumentDataset(Dataset):
    """Sample i is document i, `<s> text </s>`, padded with further `</s>`, after which nothing is a target.

    There is no `<s>` if the tokenizer has none.

    prompt_end: text of one token; only what follows its first occurrence in a document is a target. None: the whole document.

    Opening reads the whole split once to find its documents. Raises UserError if one is longer than N + 1 tokens.
    """

    def __init__(
        self,
        directory: str | Path,
        split: str,
        sequence_length: int,
        prompt_end: str | None = None,
        cache: CacheFolder | None = None,
    ):
        super().__init__(directory, split, sequence_length, cache)
        self._prompt_end = prompt_end
        if prompt_end is not None:
            self._prompt_end_id = self._single_token(prompt_end)
        members = (self._reader.member(number) for number in range(len(self._reader)))
        ends = [np.flatnonzero(ids == self.eos_id) + start + 1 for ids, start in zip(members, self._starts, strict=True)]
        self._boundaries = np.concatenate([[0], *ends])  # of documents, in the stream
        self.num_samples = self._boundaries.size - 1
        lengths = np.diff(self._boundaries)
        if lengths.size == 0 or lengths.max() > sequence_length + 1:
            found = f"the longest of its {lengths.size} has {lengths.max()} tokens" if lengths.size else "it has none"
            raise UserError(
                f"sequence length is {sequence_length}, so a document of {self._name} may have one token more, but {found}: "
                f"raise data.sequence_length, or set data.samples to packed"
            )

    def sample(self, index: int) -> Sample:
        self._check(index)
        begin, end = self._boundaries[index : index + 2]
        sample = np.full(self.sequence_length + 1, self.eos_id, np.int64)
        self._fill(sample[: end - begin], int(begin))
        tokens = sample[:-1]
        real = tokens != self.eos_id
        if self._prompt_end is not None:
            answered = np.logical_or.accumulate(tokens == self._prompt_end_id)
            if not answered.any():
                raise UserError(
                    f"a document of {self._name} has no {self._prompt_end!r}, so nothing in it would be a target: choose "
                    "another data.prompt_end, or other data"
                )
            real &= answered
        return Sample(tokens, np.where(real, sample[1:], IGNORE_INDEX), None)

    def _single_token(self, text: str) -> int:
        ids = self.tokenizer().encode(text)
        if len(ids) != 1:
            raise UserError(
                f"data.prompt_end {text!r} is {len(ids)} tokens of the tokenizer of {self._folder.origin}: choose "
                "a text that is one token, or other data"
            )
        return ids[0]
