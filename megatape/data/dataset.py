"""A prepared split as one flat stream of tokens, cut into samples of a length chosen at training time."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from megatape.data.index import SPLITS, load_index
from megatape.data.reader import SplitReader


class TokenDataset:
    """Sample i is tokens [i*N, i*N + N + 1) of the split's stream, across member, shard and document borders alike.

    Neighbours share one token, so every token is a target exactly once an epoch, save the stream's first token and the
    remainder shorter than N at its end.

    cache: see SplitReader.
    Attributes: sequence_length (N), num_samples, num_tokens, vocab_size, tokenizer_hash (sha256), unigram_entropy (nats),
    bos_id, eos_id, fingerprint (sha256 over the content of the split and its tokenizer).
    Raises ValueError or FileNotFoundError for a missing or damaged data directory and for an N that the split cannot fill.
    """

    def __init__(self, directory: str | Path, split: str, sequence_length: int, cache: Path | None = None):
        if split not in SPLITS:
            raise ValueError(f"split is {split!r}: choose one of {', '.join(SPLITS)}")
        directory = Path(directory)
        index = load_index(directory)
        content = index.splits[split]
        if not 1 <= sequence_length < content.tokens:
            raise ValueError(
                f"sequence length is {sequence_length}, but split {split} of {directory} has {content.tokens} tokens and a "
                f"sample takes one more than its length: choose 1 to {content.tokens - 1}, or prepare more text"
            )
        self.sequence_length = sequence_length
        self.num_tokens = content.tokens
        self.num_samples = (content.tokens - 1) // sequence_length
        self.vocab_size = index.tokenizer.vocab_size
        self.bos_id = index.tokenizer.bos_id
        self.eos_id = index.tokenizer.eos_id
        self.tokenizer_hash = index.tokenizer.sha256
        self.unigram_entropy = content.unigram_entropy
        identity = json.dumps([self.tokenizer_hash, asdict(content)], sort_keys=True)
        self.fingerprint = hashlib.sha256(identity.encode()).hexdigest()
        self._reader = SplitReader(directory, index, split, cache)
        tokens = [member.tokens for shard in content.shards for member in shard.members]
        self._ends = np.cumsum(tokens)  # of each member, in the stream

    def sample(self, index: int) -> np.ndarray:
        """Tokens of sample `index` as int64 [N + 1]. Raises IndexError outside [0, num_samples)."""
        if not 0 <= index < self.num_samples:
            raise IndexError(f"sample {index} of {self.num_samples}")
        begin = index * self.sequence_length
        sample = np.empty(self.sequence_length + 1, np.int64)
        member = int(np.searchsorted(self._ends, begin, side="right"))
        filled = 0
        while filled < sample.size:
            ids = self._reader.member(member)
            first = begin + filled - int(self._ends[member]) + ids.size
            part = ids[first : first + sample.size - filled]
            sample[filled : filled + part.size] = part
            filled += part.size
            member += 1
        return sample
