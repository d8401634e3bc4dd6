"""Samples made of whole documents or examples, one in each or as many as fit, and how they are joined."""

import logging
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from tokenize import TokenError

import numpy as np

from megatape.data.shards.cache import CacheFolder
from megatape.data.shards.entries import Answers
from megatape.data.shards.hashes import check_file, content_hash
from megatape.data.training.arrangement import Arrangement, ArrangementInMemory, Part, StoredArrangement, store
from megatape.data.training.dataset import Dataset, TrainingSample
from megatape.errors import UserError, content_errors
from megatape.utils.files import locked, retry_transient_errors
from megatape.utils.targets import HIDES_ANSWERS, IGNORE_INDEX, target_mask

LOG = logging.getLogger(__name__)

PACKING = "best_fit 1"  # Version of the packing. Stored samples of other versions are not read.


class PackedDataset(Dataset):
    """Samples of spans of the stream that do not see each other, then padding (the end token), which has no targets.

    A span of n inputs is n + 1 tokens: its last token is a target and never an input.

    Subclasses call `_arrange`, and may choose the targets of a span.

    Attributes:
        masked: Whether samples have document starts; those of one span each need none.
    """

    masked = True

    def _arrange(self, arrangement: Arrangement) -> None:
        """Set the samples of the split."""
        self._arrangement = arrangement
        self.shard_samples = arrangement.shard_samples
        self.num_samples = arrangement.num_samples
        self.filled = arrangement.num_inputs / max(1, self.num_samples * self.sequence_length)

    def sample(self, index: int) -> TrainingSample:
        self._check(index)
        tokens = np.full(self.sequence_length, self.eos_id, np.int64)
        targets = np.full(self.sequence_length, IGNORE_INDEX, np.int64)
        document_starts = np.empty(self.sequence_length, np.int64)
        end = 0
        for begin, size in self._arrangement.spans(index):
            if not (size >= 1 and end + size <= self.sequence_length and 0 <= begin < self.num_tokens - size):
                raise UserError(
                    f"sample {index} of {self.name} has spans outside of it or of the split: remove its packing-*.bin, and "
                    "the next run writes it again"
                )
            ids = self.stream(begin, begin + size + 1)
            start = end
            end = end + size
            tokens[start:end] = ids[:-1]
            targets[start:end] = self._targets(begin, ids)
            document_starts[start:end] = start
        document_starts[end:] = end
        return TrainingSample(tokens, targets, document_starts if self.masked else None)

    def spans(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        self._check(index)
        spans = np.array(list(self._arrangement.spans(index)), np.int64).reshape(-1, 2)
        return spans[:, 0], spans[:, 1]

    def _targets(self, begin: int, ids: np.ndarray) -> np.ndarray:
        """Targets of a span's inputs, int64 [n]. begin: its first token in the stream. ids: its tokens, int64 [n + 1]."""
        return ids[1:]


class DocumentDataset(PackedDataset):
    """Sample i is document i, `<s> text </s>` (without `<s>` if the tokenizer has none), and padding.

    Args:
        prompt_end: Text of one token; only what follows its first occurrence in a document is a target. None: the whole
            document. If set, opening the dataset reads the split.
        skip_without_prompt_end: Skip documents without that token instead of raising an error.
        directory, split, sequence_length, cache: See Dataset.

    Raises:
        UserError: A document is longer than N + 1 tokens or has no prompt end, or what Dataset raises.
    """

    masked = False

    def __init__(
        self,
        directory: str | Path,
        split: str,
        sequence_length: int,
        prompt_end: str | None = None,
        cache: CacheFolder | None = None,
        skip_without_prompt_end: bool = False,
    ) -> None:
        super().__init__(directory, split, sequence_length, cache)
        self._prompt_end = prompt_end
        self._prompt_end_id = -1
        if prompt_end is not None:
            ids = self.tokenizer().encode(prompt_end)
            if len(ids) != 1:
                raise UserError(
                    f"data.prompt_end {prompt_end!r} is {len(ids)} tokens of the tokenizer of {self.name}: choose a text that "
                    "is one token, or other data"
                )
            self._prompt_end_id = ids[0]
        lengths = np.concatenate([np.empty(0, np.int64), *self.document_lengths()])
        if lengths.size == 0 or lengths.max() > sequence_length + 1:
            found = f"the longest of its {lengths.size} has {lengths.max()} tokens" if lengths.size else "it has none"
            raise UserError(
                f"sequence length is {sequence_length}, so a document of {self.name} may have one token more, but {found}: "
                f"raise data.sequence_length, or set data.samples to packed"
            )
        begins = np.cumsum(lengths) - lengths
        if prompt_end is not None:
            with_answer = self._with_answer(begins)
            self.num_skipped = int(np.count_nonzero(~with_answer))
            if self.num_skipped == lengths.size or (self.num_skipped and not skip_without_prompt_end):
                raise self._no_answer(np.flatnonzero(~with_answer))
            begins = begins[with_answer]
            lengths = lengths[with_answer]
        part = Part(begins, lengths - 1, *alone(lengths.size))
        self._arrange(ArrangementInMemory([part]))

    def _with_answer(self, begins: np.ndarray) -> np.ndarray:
        """Read the split and return which documents have the prompt end, bool [documents].

        Args:
            begins: First token of each document in the stream, int64 [documents].
        """
        found = np.zeros(begins.size, np.bool_)
        num_read = 0
        for ids in self._reader.members():
            places = num_read + np.flatnonzero(ids == self._prompt_end_id)
            found[begins.searchsorted(places, side="right") - 1] = True
            num_read += ids.size
        return found

    def _no_answer(self, missing: np.ndarray) -> UserError:
        """Return the error about documents without a prompt end.

        Args:
            missing: Numbers of these documents, int64 [n].
        """
        first = f"document {missing[0]:,}"
        if self.has_tables:
            first += f" ({self.tables.document(int(missing[0])).place})"
        return UserError(
            f"documents of {self.name} without the data.prompt_end {self._prompt_end!r}: {missing.size:,}, the first is "
            f"{first}. Nothing in them would be a target: set data.missing_prompt_end to skip, or choose another "
            "data.prompt_end"
        )

    def _targets(self, begin: int, ids: np.ndarray) -> np.ndarray:
        if self._prompt_end is None:
            return ids[1:]
        answered = np.logical_or.accumulate(ids[:-1] == self._prompt_end_id)
        return np.where(answered, ids[1:], IGNORE_INDEX)


class BestFitDataset(PackedDataset):
    """Samples of documents, packed by best fit decreasing.

    A document of m tokens takes m - 1 inputs of a sample. One that takes more than N is cut every N inputs, and what remains
    of it is packed like a document. So every token but the first of its document is a target once in an epoch (Ding et al.,
    "Fewer truncations improve language modeling", 2024). Each shard is packed separately, which bounds the memory that packing
    takes: a document across two shards is cut there.

    The first rank of a node to open the split packs it, and stores the samples in a file beside the shards or their copies. All
    ranks read this file, in later runs as well. Packing takes the lengths of documents from the folder's tables, or
    reads the split if it has none. Arguments, attributes and errors: see Dataset.
    """

    def __init__(
        self, directory: str | Path, split: str, sequence_length: int, cache: CacheFolder | None = None, window: int = 0
    ) -> None:
        super().__init__(directory, split, sequence_length, cache, window)
        if self.num_tokens == 0:
            raise UserError(f"{self.name} has no documents: prepare more text")
        self._arrange(self._stored_samples())
        if self.num_samples == 0:
            raise UserError(f"{self.name} has no document with more than its end: prepare more text")

    def _stored_samples(self) -> Arrangement:
        """Open the file of the split's samples, writing it if it is missing. Keep them in memory if it cannot be written."""
        tables = self._index.document_tables.get(self.split, [])
        identity = content_hash(PACKING, self.fingerprint, self.split, self.sequence_length, tables)
        path = self._reader.folder / f"packing-{self.split}-{self.sequence_length}-{identity[:16]}.bin"
        if not path.exists():
            try:
                with locked(path.with_name("packing.lock"), remove=True):
                    if not path.exists():  # Another rank may have written it meanwhile.
                        store(path, identity, self._packed_shards())
            except OSError as error:
                LOG.warning(
                    f"{path} cannot be written ({error}): every rank packs {self.name} and keeps the result in memory. Make "
                    "the folder writable, or set data.cache"
                )
                return ArrangementInMemory(self._packed_shards())
        return StoredArrangement(path, identity)

    def _packed_shards(self) -> Iterator[Part]:
        for first, documents in zip(np.r_[0, self.shard_ends], self._documents(), strict=False):
            begins, inputs = _spans(first, documents, self.sequence_length)
            yield Part(begins, inputs, *pack(inputs, self.sequence_length))

    def _documents(self) -> Iterator[np.ndarray]:
        """For each shard the tokens of its documents, and of the parts of documents that it has, int64."""
        shard_ends = self.shard_ends.tolist()
        ends = np.empty(0, np.int64)  # of documents that end in this shard or later
        begin = last = 0  # of the shard, and of all documents so far
        for lengths in self.document_lengths():
            ends = np.concatenate([ends, last + np.cumsum(lengths)])
            last += int(lengths.sum())
            while shard_ends and shard_ends[0] <= last:
                end = shard_ends.pop(0)
                yield np.diff(np.r_[begin, ends[ends < end], end])
                begin = end
                ends = ends[ends > end]
        if last != self.num_tokens:
            raise UserError(
                f"the documents of {self.name} have {last:,} tokens, the split {self.num_tokens:,}: prepare the data again"
            )


def _spans(first: int, documents: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """First token and inputs of each span. first: token of the first of these documents. documents: their tokens, int64."""
    inputs = documents - 1
    counts = -(-inputs // length)  # spans of a document
    of = np.repeat(np.arange(documents.size), counts)
    before = (np.arange(of.size) - np.repeat(np.cumsum(counts) - counts, counts)) * length  # inputs of the same document
    return first + (np.cumsum(documents) - documents)[of] + before, np.minimum(inputs[of] - before, length)


class ExampleDataset(PackedDataset):
    """Samples of whole examples. Only tokens of answers are targets.

    Args:
        mask_documents: A sample has as many examples as fit, which do not see each other; else it has one.
        directory, split, sequence_length, cache: See Dataset.

    Attributes:
        unigram_entropy: Of the targets.

    Raises:
        UserError: The split is not one of prompts and answers, its longest example does not fit, or what Dataset raises.
    """

    def __init__(
        self,
        directory: str | Path,
        split: str,
        sequence_length: int,
        mask_documents: bool = False,
        cache: CacheFolder | None = None,
    ) -> None:
        super().__init__(directory, split, sequence_length, cache)
        entry = self.answers
        if entry is None:
            raise UserError(
                f"{self.name} has no prompts and answers, which data.samples examples needs: prepare them with `megatape "
                "prepare finetuning`, or set data.samples to packed"
            )
        if entry.longest > sequence_length + 1:
            raise UserError(
                f"sequence length is {sequence_length}, so an example of {self.name} may have one token more, but the longest "
                f"has {entry.longest}: raise data.sequence_length, or prepare with a lower `sequence_length`"
            )
        self.unigram_entropy = entry.unigram_entropy
        self.fingerprint = content_hash(self.fingerprint, entry.sha256)
        self._folder.fetch(entry.file)
        answers = retry_transient_errors(lambda: read_answers(self._folder.directory / entry.file, entry, self.num_tokens))
        self._answers = answers[:, 1:]
        last = np.searchsorted(answers[:, 0], np.arange(entry.examples), side="right") - 1  # answer of each example
        ends = np.r_[0, self._answers[last, 1]]  # of examples, in the stream
        inputs = np.diff(ends) - 1
        self.masked = mask_documents
        packed = pack(inputs, sequence_length) if mask_documents else alone(inputs.size)
        self._arrange(ArrangementInMemory([Part(ends[:-1], inputs, *packed)]))

    def sample(self, index: int) -> TrainingSample:
        found = super().sample(index)
        if self._index.source.get(HIDES_ANSWERS):  # the next example, which may follow an answer, begins with its own token
            found.tokens[1:][target_mask(found.targets[:-1]) & (found.tokens[1:] != self.bos_id)] = self.eos_id
        return found

    def _targets(self, begin: int, ids: np.ndarray) -> np.ndarray:
        targets = np.full(ids.size - 1, IGNORE_INDEX, np.int64)
        first, last = np.searchsorted(self._answers[:, 0], (begin, begin + ids.size))
        for start, end in self._answers[first:last] - begin:
            targets[start - 1 : end - 1] = ids[start:end]
        return targets


def read_answers(path: Path, entry: Answers, num_tokens: int) -> np.ndarray:
    """Read the file of a split's answers.

    Args:
        path: The file.
        entry: Of the index.
        num_tokens: Of the split.

    Returns:
        Example, first token and end of each answer, int64 [answers, 3].

    Raises:
        UserError, FileNotFoundError: The file is missing, is not the one of the index, or does not fit the split.
        OSError: It cannot be read.
    """
    check_file(path, entry.sha256)
    kinds = ValueError, EOFError, MemoryError, SyntaxError, TokenError
    with content_errors(f"{path}: no array of answers", "prepare the data again", kinds):
        answers = np.load(path, allow_pickle=False)
    if answers.dtype != np.int64 or answers.shape != (answers.size // 3, 3) or not answers.size:
        raise UserError(f"{path}: an array {answers.shape} of {answers.dtype}, not of answers: prepare the data again")
    examples, first, end = answers.T
    previous = np.r_[0, end[:-1]]
    new = np.diff(examples, prepend=-1)
    # A target needs a token before it in its example.
    right = (first < end).all() and (first >= previous + new).all() and np.isin(new, (0, 1)).all()
    if not right or end[-1] != num_tokens or examples[-1] + 1 != entry.examples:
        raise UserError(f"{path}: its answers do not fit the {num_tokens} tokens of the split: prepare the data again")
    return answers


def pack(lengths: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Put spans into samples, of which none holds more than `capacity` inputs: a function of the lengths alone.

    Best fit decreasing: from the longest on, a span joins the sample in which it leaves the least room. Spans of one length
    are placed together: they fill one sample after the other, since a sample with room for another one stays the best.
    Samples are in the order of their first spans, so that the first samples are no selection by length.

    Args:
        lengths: int [spans], 1 to `capacity`.
        capacity: Inputs of a sample.

    Returns:
        Spans by sample, int64 [spans], and the number of spans of each sample, int64 [samples].
    """
    by_length = np.argsort((capacity - lengths).astype(np.min_scalar_type(capacity)), kind="stable")  # 16 bits sort fast
    descending = lengths[by_length]
    ends = np.flatnonzero(np.diff(descending, append=0)) + 1  # of spans of one length
    with_room: dict[int, list[int]] = defaultdict(list)  # samples by the room that is left in them
    rooms: list[int] = []  # keys of with_room, in order
    sample_of: list[int] = []  # of each span, from the longest on
    num_samples = 0
    for length, end in zip(descending[ends - 1].tolist(), ends.tolist(), strict=True):
        while left := end - len(sample_of):
            place = bisect_left(rooms, length)
            room = rooms[place] if place < len(rooms) else capacity
            each = room // length  # spans for which a sample has room
            wanted = -(left // -each)
            if place < len(rooms):
                samples = with_room[room][: -wanted - 1 : -1]  # the latest first
                del with_room[room][-wanted:]
                if not with_room[room]:
                    del with_room[room], rooms[place]
            else:
                samples = list(range(num_samples, num_samples + wanted))
                num_samples += wanted
            placed = [sample for sample in samples for _ in range(each)][:left]
            sample_of += placed
            in_last = len(placed) - each * (len(samples) - 1)
            for room_left, those in ((room - each * length, samples[:-1]), (room - in_last * length, samples[-1:])):
                if those and room_left not in with_room:
                    insort(rooms, room_left)
                if those:
                    with_room[room_left] += those
    samples_of_spans = np.empty(lengths.size, np.int64)
    samples_of_spans[by_length] = sample_of
    first = np.empty(num_samples, np.int64)
    first[samples_of_spans[::-1]] = np.arange(lengths.size)[::-1]  # the last that is assigned counts
    return np.argsort(first[samples_of_spans], kind="stable"), np.bincount(samples_of_spans)[np.argsort(first)]


def alone(num_spans: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples of one span each."""
    return np.arange(num_spans), np.ones(num_spans, np.int64)
