"""Processor time of preparing data, on the same text: against its tokenizer alone, and against a loop with gigatoken."""

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
from megatape.lab.benchmark.timing import Timer, ratio, spread
from megatape.utils.python_process import child_environment, python_command
from megatape.utils.tables import markdown

FILES = 2  # each a unit of the preparation, which so reads the source twice: for duplicates, then to write
VALIDATION_SHARE = 0.1
BATCH = 1000  # documents that are tokenized at a time
LIBRARIES = {"tokenizer.model": "SentencePiece", "tokenizer.json": "tokenizers"}


def report(source: Source, tokenizer: Tokenizer | None, vocab_size: int, megabytes: int, rounds: int) -> Iterator[str]:
    """Yields what is measured, and the table.

    tokenizer: None trains one of `vocab_size` tokens on the source. megabytes: of text, 10^6 bytes; of a smaller
    source all. Raises ModuleNotFoundError without gigatoken, UserError if it does not give the same ids.
    """
    if tokenizer is None:
        tokenizer = SentencePieceTokenizer(train_tokenizer(sample_texts(source, MAX_TRAINING_BYTES), vocab_size))
    tokenizer.num_threads = 1
    FastTokenizer(tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        yield from _measured(tokenizer, _texts(source, megabytes * 10**6), Path(folder), rounds)


def _measured(tokenizer: Tokenizer, texts: list[str], folder: Path, rounds: int) -> Iterator[str]:
    num_bytes = sum(len(text.encode()) for text in texts)
    units = _write(texts, folder)
    corpus = PreparationOptions(Source("jsonl", tuple(unit.inputs[0] for unit in units)), VALIDATION_SHARE, tokenizer, 0)
    numbers = count()
    indexes = []
    loaded = [FastTokenizer(tokenizer) for _ in range(2 * (rounds + 1))]  # each for one use: they keep words

    def alone() -> None:
        for begin in range(0, len(texts), BATCH):
            tokenizer.encode_documents(texts[begin : begin + BATCH])

    def prepared(fast: FastTokenizer | None) -> None:
        preparation = Preparation(corpus, PartialFolder(folder / f"{next(numbers)}", DEFAULT_TIMEOUTS), units)
        plan = preparation.begin()
        preparation.work(tokenizer, fast, lambda *_: None)
        indexes.append(preparation.finish(plan)[0])

    gc.freeze()  # the garbage collector leaves out what only this benchmark has loaded, such as PyTorch
    name = LIBRARIES[tokenizer.file]
    actions: dict[str, Callable[[], object]] = {
        f"{name} alone": alone,
        f"preparation with {name}": lambda: prepared(None),
        "loop with gigatoken": lambda: loop(corpus.source.inputs, loaded.pop(), folder / f"{next(numbers)}"),
        "preparation with gigatoken": lambda: prepared(loaded.pop()),
    }
    seconds = Timer(torch.device("cpu"), rounds, clock=time.process_time).times(actions)
    same = all(index == indexes[0] for index in indexes)
    yield (
        f"{num_bytes / 1e6:.1f} MB of text in {len(texts):,} documents, {tokenizer.vocab_size:,} tokens; processor time of one "
        f"process, median of {rounds} rounds; the data are {'' if same else 'NOT '}the same to the byte"
    )
    names = list(seconds)
    rows = list[list[str]]()
    for what, baseline in zip(names, (names[0], names[0], names[2], names[2]), strict=True):
        over = ratio(seconds[baseline], seconds[what])
        rate = f"{num_bytes / 1e6 / spread(seconds[what]).median:.1f}"
        rows.append([what, rate, f"{over.median:.2f} ({over.low:.2f} to {over.high:.2f})", baseline])
    yield markdown(["", "MB/s", "rate against the baseline (quartiles)", "baseline"], rows)
    yield f"start: {_start_seconds(tokenizer, folder):.1f} processor seconds of a command that prepares ten short documents"


def loop(paths: Sequence[str], fast: FastTokenizer, output: Path) -> None:
    """The baseline: a careful loop of the same libraries, for one split, without rules, tables, counts, or resuming."""
    output.mkdir()
    known = set[bytes]()
    hasher = hashlib.sha256()
    with (output / "tokens.bin").open("wb") as file:
        for path in paths:
            with igzip.open(path, "rb") as lines:
                for line in lines:
                    text = orjson.loads(line)["text"]
                    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
                    if digest not in known:
                        known.add(digest)
                        parts = fast.begin, fast.unverified_ids(text), fast.end
                        ids = np.concatenate(parts, dtype=np.uint16, casting="unsafe").tobytes()
                        hasher.update(ids)
                        file.write(ids)
    (output / "sha256").write_text(hasher.hexdigest())


def _start_seconds(tokenizer: Tokenizer, folder: Path) -> float:
    """Processor time of the command on almost nothing."""
    lines = folder / "start.jsonl"
    model = folder / "tokenizer"
    lines.write_text("".join(f'{{"text": "{number}"}}\n' for number in range(10)), encoding="utf-8")
    model.mkdir()
    store_tokenizer(tokenizer, model)
    words: list[str | Path] = ["prepare", "corpus", "--source", "jsonl", "--input", lines, "--tokenizer", model]
    words += ["--output", folder / "started", "--validation-share", "0.5"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = python_command("megatape.commands.main", *map(str, words))
    subprocess.run(command, env=child_environment(), check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _texts(source: Source, num_bytes: int) -> list[str]:
    """The first documents, of at least `num_bytes` in all if there are as many."""
    texts = []
    left = num_bytes
    for document in read_documents(source, CorpusCounts()):
        texts.append(document.text)
        left -= len(document.text.encode())
        if left <= 0:
            break
    return texts


def _write(texts: list[str], folder: Path) -> list[Unit]:
    """FILES files of compressed lines, each of them a unit."""
    units = []
    for number in range(FILES):
        path = folder / f"{number}.jsonl.gz"
        with igzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
            for text in texts[number::FILES]:
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        units.append(Unit((str(path),), path.stat().st_size))
    return units
