"""Processor time of preparing data, beside the tokenizer alone and a plain loop with gigatoken, on the same text."""

import gc
import hashlib
import json
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import orjson
import torch
from isal import igzip

from megatape.data.counts import CorpusCounts
from megatape.data.prepare.folder import PartialFolder
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.preparation import Preparation
from megatape.data.prepare.training_sample import sample_texts
from megatape.data.prepare.unit_lease import DEFAULT_TIMEOUTS
from megatape.data.shards.index import store_tokenizer
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import Source
from megatape.data.sources.units import Unit
from megatape.data.tokenizers.fast import FastTokenizer
from megatape.data.tokenizers.sentencepiece import MAX_TRAINING_BYTES, SentencePieceTokenizer, train_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.lab.benchmark.cells import ratio_cell
from megatape.lab.benchmark.timing import Timer, ratio, spread
from megatape.utils.python_process import child_environment, python_command
from megatape.utils.tables import markdown

# Number of files, each a unit of the preparation. With several units it reads the source twice: for duplicates, then to write.
FILES = 2
VALIDATION_SHARE = 0.1
# Number of documents that are tokenized at a time.
BATCH = 1000
LIBRARIES = {"tokenizer.model": "SentencePiece", "tokenizer.json": "tokenizers"}


def report(source: Source, tokenizer: Tokenizer | None, vocab_size: int, megabytes: int, rounds: int) -> Iterator[str]:
    """Measure preparation, and yield the paragraphs of the report.

    Args:
        source: Source of the text.
        tokenizer: Tokenizer to measure. None to train one on the source.
        vocab_size: Number of tokens of the trained tokenizer.
        megabytes: Size of the text in 10^6 bytes. A smaller source is used completely.
        rounds: Number of timed rounds.

    Raises:
        ModuleNotFoundError: gigatoken is not installed.
        UserError: gigatoken gives other ids than the tokenizer.
    """
    if tokenizer is None:
        sample = sample_texts(source, MAX_TRAINING_BYTES)
        tokenizer = SentencePieceTokenizer(train_tokenizer(sample, vocab_size))
    tokenizer.num_threads = 1
    # Report a tokenizer that gigatoken does not support before reading the source.
    FastTokenizer(tokenizer)
    texts = first_texts(source, megabytes * 10**6)
    with tempfile.TemporaryDirectory() as folder:
        yield from measure(tokenizer, texts, Path(folder), rounds)


def measure(tokenizer: Tokenizer, texts: list[str], folder: Path, rounds: int) -> Iterator[str]:
    """Measure preparation of some texts, and yield the paragraphs of the report.

    Args:
        tokenizer: Tokenizer to measure.
        texts: Documents.
        folder: Temporary folder.
        rounds: Number of timed rounds.
    """
    num_bytes = sum(len(text.encode()) for text in texts)
    units = write_units(texts, folder)
    corpus = PreparationOptions(Source("jsonl", tuple(unit.inputs[0] for unit in units)), VALIDATION_SHARE, tokenizer, 0)
    numbers = count()
    indexes = []
    # One for each use, because a tokenizer caches words. Both actions use one in every round and in the warm-up.
    num_uses = 2 * (rounds + 1)
    fast_tokenizers = [FastTokenizer(tokenizer) for _ in range(num_uses)]

    def tokenize_alone() -> None:
        for begin in range(0, len(texts), BATCH):
            tokenizer.encode_documents(texts[begin : begin + BATCH])

    def prepare(fast: FastTokenizer | None) -> None:
        partial_folder = PartialFolder(folder / f"{next(numbers)}", DEFAULT_TIMEOUTS)
        preparation = Preparation(corpus, partial_folder, units)
        plan = preparation.begin()
        preparation.work(tokenizer, fast, lambda *_: None)
        indexes.append(preparation.finish(plan)[0])

    # The garbage collector skips the objects that only this benchmark has loaded, such as PyTorch's.
    gc.freeze()
    name = LIBRARIES[tokenizer.file]
    actions: dict[str, Callable[[], object]] = {
        f"{name} alone": tokenize_alone,
        f"preparation with {name}": lambda: prepare(None),
        "loop with gigatoken": lambda: loop(corpus.source.inputs, fast_tokenizers.pop(), folder / f"{next(numbers)}"),
        "preparation with gigatoken": lambda: prepare(fast_tokenizers.pop()),
    }
    seconds = Timer(torch.device("cpu"), rounds, clock=time.process_time).times(actions)
    comparison = "the same"
    if any(index != indexes[0] for index in indexes):
        comparison = "NOT the same"
    yield (
        f"{num_bytes / 1e6:.1f} MB of text in {len(texts):,} documents, {tokenizer.vocab_size:,} tokens; processor time of one "
        f"process, median of {rounds} rounds; the data are {comparison} to the byte"
    )
    alone, _, plain_loop, _ = seconds
    baselines = [alone, alone, plain_loop, plain_loop]
    rows = []
    for (action, taken), baseline in zip(seconds.items(), baselines, strict=True):
        relative = ratio(seconds[baseline], taken)
        rate = f"{num_bytes / 1e6 / spread(taken).median:.1f}"
        rows.append([action, rate, ratio_cell(relative), baseline])
    yield markdown(["", "MB/s", "rate against the baseline (quartiles)", "baseline"], rows)
    yield f"start: {_start_seconds(tokenizer, folder):.1f} processor seconds of a command that prepares ten short documents"


def loop(paths: Sequence[str], fast: FastTokenizer, output: Path) -> None:
    """Prepare one split in a careful loop with the same libraries, without rules, tables, counts or resuming."""
    output.mkdir()
    known = set[bytes]()
    hasher = hashlib.sha256()
    with (output / "tokens.bin").open("wb") as file:
        for path in paths:
            with igzip.open(path, "rb") as lines:
                for line in lines:
                    text = orjson.loads(line)["text"]
                    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
                    if digest in known:
                        continue
                    known.add(digest)
                    parts = (fast.begin, fast.unverified_ids(text), fast.end)
                    ids = np.concatenate(parts, dtype=np.uint16, casting="unsafe").tobytes()
                    hasher.update(ids)
                    file.write(ids)
    (output / "sha256").write_text(hasher.hexdigest())


def _start_seconds(tokenizer: Tokenizer, folder: Path) -> float:
    """Return the processor time of the command with ten short documents."""
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
    """Return the first documents of a source, until they have `num_bytes` in total."""
    texts = []
    left = num_bytes
    for document in read_documents(source, CorpusCounts()):
        texts.append(document.text)
        left -= len(document.text.encode())
        if left <= 0:
            break
    return texts


def write_units(texts: list[str], folder: Path) -> list[Unit]:
    """Write FILES compressed files of JSON lines, and return them as units."""
    units = []
    for number in range(FILES):
        path = folder / f"{number}.jsonl.gz"
        with igzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
            for text in texts[number::FILES]:
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        units.append(Unit((str(path),), path.stat().st_size))
    return units
