"""CPU time for preparing data, compared with the tokenizer alone and a plain loop with gigatoken, on the same text."""

import gc
import hashlib
import json
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import orjson
import torch
from isal import igzip

from megatape.data.counts import CorpusCounts
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.planning.training_sample import sample_texts
from megatape.data.prepare.preparation import open_preparation
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.unit_lease import DEFAULT_TIMEOUTS
from megatape.data.shards.entries import Index
from megatape.data.shards.index import store_tokenizer
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import Source
from megatape.data.tokenizers.fast import FastTokenizer
from megatape.data.tokenizers.sentencepiece import MAX_TRAINING_BYTES, SentencePieceTokenizer, train_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.lab.benchmark.figures.cells import ratio_cell
from megatape.lab.benchmark.figures.timing import Spread, Timer, ratio, spread
from megatape.utils.processes.python_process import child_environment, python_command
from megatape.utils.text.tables import markdown

# Number of files with lines of JSON. Each is a unit. Several units take two passes: one finds duplicates, one writes.
FILES = 2
VALIDATION_SHARE = 0.1
# Number of documents per tokenizer call.
BATCH = 1000
# Tokenizer file -> its library.
LIBRARIES = {"tokenizer.model": "SentencePiece", "tokenizer.json": "tokenizers"}


@dataclass(frozen=True)
class PreparationWay:
    """A way to prepare the text: its name, its baseline's name, and a function doing it once."""

    name: str
    baseline: str
    action: Callable[[], object]


@dataclass(frozen=True)
class PreparationTimes:
    """A way's CPU seconds per round, and its baseline's in the same rounds."""

    name: str
    baseline: str
    seconds: list[float]
    baseline_seconds: list[float]

    @property
    def relative_rate(self) -> Spread:
        """Rate over the baseline's, which is the baseline's time over this way's."""
        return ratio(self.baseline_seconds, self.seconds)


@dataclass(frozen=True)
class PreparationResult:
    """Times for preparing the same text in all ways.

    Attributes:
        num_bytes: Text size.
        num_documents: Number of documents.
        vocab_size: Vocabulary size.
        ways: Times per way.
        has_equal_data: Whether all preparations have written the same data.
        start_seconds: CPU seconds of a command preparing ten short documents.
    """

    num_bytes: int
    num_documents: int
    vocab_size: int
    ways: list[PreparationTimes]
    has_equal_data: bool
    start_seconds: float


def report(source: Source, tokenizer: Tokenizer | None, vocab_size: int, megabytes: int, rounds: int) -> list[str]:
    """Measure preparation, and return paragraphs about the result.

    Args:
        source: Text source.
        tokenizer: Tokenizer to measure. None to train one on the source.
        vocab_size: Vocabulary size to train.
        megabytes: Text size in 10^6 bytes. A smaller source is used completely.
        rounds: Timed rounds.

    Raises:
        ModuleNotFoundError: gigatoken is not installed.
        UserError: gigatoken and the tokenizer disagree about the ids.
    """
    if tokenizer is None:
        sample = sample_texts(source, MAX_TRAINING_BYTES)
        tokenizer = SentencePieceTokenizer(train_tokenizer(sample, vocab_size))
    tokenizer.num_threads = 1
    # Report a tokenizer that gigatoken does not support before reading the source.
    FastTokenizer(tokenizer)
    texts = first_texts(source, megabytes * 10**6)
    with tempfile.TemporaryDirectory() as folder:
        result = measure(tokenizer, texts, Path(folder), rounds)
    return describe(result, rounds)


def describe(result: PreparationResult, rounds: int) -> list[str]:
    """Return the paragraphs about a result."""
    comparison = "the same" if result.has_equal_data else "NOT the same"
    megabytes = result.num_bytes / 1e6
    summary = (
        f"{megabytes:.1f} MB of text in {result.num_documents:,} documents, {result.vocab_size:,} tokens; processor time of "
        f"one process, median of {rounds} rounds; the data are {comparison} to the byte"
    )
    rows = []
    for way in result.ways:
        rate = megabytes / spread(way.seconds).median
        rows.append([way.name, f"{rate:.1f}", ratio_cell(way.relative_rate), way.baseline])
    table = markdown(["", "MB/s", "rate against the baseline (quartiles)", "baseline"], rows)
    start = f"start: {result.start_seconds:.1f} processor seconds of a command that prepares ten short documents"
    return [summary, table, start]


def measure(tokenizer: Tokenizer, texts: list[str], folder: Path, rounds: int) -> PreparationResult:
    """Measure how fast texts are prepared, writing to a temporary folder."""
    # A new tokenizer for each use, because tokenizers cache words. Two ways use one in every round and in the warm-up.
    num_uses = 2 * (rounds + 1)
    preparations = Preparations(tokenizer, texts, folder, num_uses)
    # Let the garbage collector skip objects that only this benchmark has loaded, such as PyTorch's.
    gc.freeze()
    ways = preparations.ways()
    seconds = Timer(torch.device("cpu"), rounds, clock=time.process_time).times({way.name: way.action for way in ways})
    times = [PreparationTimes(way.name, way.baseline, seconds[way.name], seconds[way.baseline]) for way in ways]
    return PreparationResult(
        num_bytes=sum(len(text.encode()) for text in texts),
        num_documents=len(texts),
        vocab_size=tokenizer.vocab_size,
        ways=times,
        has_equal_data=preparations.has_equal_data,
        start_seconds=_start_seconds(tokenizer, folder),
    )


class Preparations:
    """Prepares the same texts repeatedly, each time into a new folder."""

    def __init__(self, tokenizer: Tokenizer, texts: list[str], folder: Path, num_fast_tokenizers: int) -> None:
        """Write the texts as a source, and load a fast tokenizer for each use."""
        self._tokenizer = tokenizer
        self._texts = texts
        self._folder = folder
        self._numbers = count()
        self._indexes: list[Index] = []
        # Files are compressed, so with this size each is a unit.
        lines = Source("jsonl", write_files(texts, folder), unit_bytes=1)
        self._options = PreparationOptions(lines, VALIDATION_SHARE, tokenizer, 0)
        text_files = Source("text", (write_text_files(texts, folder),))
        self._text_file_options = PreparationOptions(text_files, VALIDATION_SHARE, tokenizer, 0)
        self._fast_tokenizers = [FastTokenizer(tokenizer) for _ in range(num_fast_tokenizers)]

    @property
    def has_equal_data(self) -> bool:
        """Whether all preparations of the same source have written the same data."""
        return all(index == self._indexes[0] for index in self._indexes)

    def ways(self) -> list[PreparationWay]:
        """Return the ways to prepare the texts, in table order."""
        library = LIBRARIES[self._tokenizer.file]
        alone = f"{library} alone"
        plain_loop = "loop with gigatoken"
        return [
            PreparationWay(alone, alone, self._tokenize),
            PreparationWay(f"preparation with {library}", alone, self._prepare),
            PreparationWay(f"preparation of text files with {library}", alone, self._prepare_text_files),
            PreparationWay(plain_loop, plain_loop, self._loop),
            PreparationWay("preparation with gigatoken", plain_loop, self._prepare_fast),
        ]

    def _tokenize(self) -> None:
        for begin in range(0, len(self._texts), BATCH):
            self._tokenizer.encode_documents(self._texts[begin : begin + BATCH])

    def _prepare(self, fast: FastTokenizer | None = None) -> None:
        self._indexes.append(self._run_preparation(self._options, fast))

    def _prepare_text_files(self) -> None:
        self._run_preparation(self._text_file_options)

    def _run_preparation(self, options: PreparationOptions, fast: FastTokenizer | None = None) -> Index:
        """Prepare a source into a new folder, and return the index of its data."""
        partial_folder = PartialFolder(self._new_folder(), DEFAULT_TIMEOUTS)
        with open_preparation(options, partial_folder) as preparation:
            preparation.work(self._tokenizer, fast, lambda *_: None)
            index, *_ = preparation.finish()
        return index

    def _prepare_fast(self) -> None:
        self._prepare(self._fast_tokenizers.pop())

    def _loop(self) -> None:
        loop(self._options.source.inputs, self._fast_tokenizers.pop(), self._new_folder())

    def _new_folder(self) -> Path:
        return self._folder / f"{next(self._numbers)}"


def loop(paths: Sequence[str], fast: FastTokenizer, output: Path) -> None:
    """Prepare one split in a plain loop with the same libraries, without rules, tables, counts or resuming."""
    output.mkdir()
    seen = set[bytes]()
    hasher = hashlib.sha256()
    with (output / "tokens.bin").open("wb") as file:
        for path in paths:
            with igzip.open(path, "rb") as lines:
                for line in lines:
                    text = orjson.loads(line)["text"]
                    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
                    if digest in seen:
                        continue
                    seen.add(digest)
                    parts = (fast.begin, fast.unverified_ids(text), fast.end)
                    ids = np.concatenate(parts, dtype=np.uint16, casting="unsafe").tobytes()
                    hasher.update(ids)
                    file.write(ids)
    (output / "sha256").write_text(hasher.hexdigest())


def _start_seconds(tokenizer: Tokenizer, folder: Path) -> float:
    """Return the CPU seconds of a command preparing ten short documents."""
    lines = folder / "start.jsonl"
    model = folder / "tokenizer"
    lines.write_text("".join(f'{{"text": "{number}"}}\n' for number in range(10)), encoding="utf-8")
    model.mkdir()
    store_tokenizer(tokenizer, model)
    words: list[str | Path] = ["prepare", "corpus", "--source", "jsonl", "--input", lines, "--tokenizer", model]
    words += ["--output", folder / "started", "--validation-share", "0.5"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = python_command("megatape.commands.cli.main", *map(str, words))
    subprocess.run(command, env=child_environment(), check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def first_texts(source: Source, num_bytes: int) -> list[str]:
    """Return a source's first documents, with `num_bytes` or more in total."""
    texts = []
    remaining = num_bytes
    for document in read_documents(source, CorpusCounts()):
        texts.append(document.text)
        remaining -= len(document.text.encode())
        if remaining <= 0:
            break
    return texts


def write_files(texts: list[str], folder: Path) -> tuple[str, ...]:
    """Write the texts to FILES compressed JSON-lines files. Returns their names."""
    names = []
    for number in range(FILES):
        path = folder / f"{number}.jsonl.gz"
        with igzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
            for text in texts[number::FILES]:
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        names.append(str(path))
    return tuple(names)


def write_text_files(texts: list[str], folder: Path) -> str:
    """Write each text to a file of its own. Returns the folder of all files."""
    text_folder = folder / "texts"
    text_folder.mkdir()
    for number, text in enumerate(texts):
        # Bytes keep the line breaks of the text.
        (text_folder / f"{number:06}.txt").write_bytes(text.encode())
    return str(text_folder)
