"""Sequences that the steps of a run have trained on, over kills, resumes and other numbers of ranks."""

import json
import os
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest

from megatape.config import parse_config
from megatape.data.shards.entries import Index
from megatape.data.shards.index import load_index, save_index
from megatape.data.shards.writer import SplitWriter
from megatape.distributed.topology import Topology
from megatape.reliability.lease import hold
from megatape.run_folder import RunFolder, read_steps
from megatape.training.start import Start
from megatape.training.startup.build_trainer import build_trainer
from megatape.zero.engine import Engine
from tests.helpers.processes.workers import start_workers
from tests.helpers.runs.run_data import open_run_data
from tests.helpers.runs.run_folders import read_entries
from tests.helpers.runs.small_run import small_config

SAMPLE_TOKENS = 32
CHUNK_TOKENS = 8  # Every chunk in a corpus begins with its tag.
CHUNKS_PER_SAMPLE = SAMPLE_TOKENS // CHUNK_TOKENS
SAMPLES_PER_SHARD = 8
SAMPLES_PER_STEP = 8
STEPS = 12
# Corpus -> number of shards
NUM_SHARDS = {"first": 5, "second": 3}
# A tag is its chunk's number as two digits, each being a token id.
FIRST_DIGIT_ID = 10
NUM_DIGITS = 90

Tag = tuple[str, int]  # A chunk's corpus and number


class Attempt(NamedTuple):
    """One start of the run.

    Attributes:
        num_ranks: Number of ranks.
        last_step: Step at whose end all ranks kill themselves, None to train to the end.
    """

    num_ranks: int
    last_step: int | None


ATTEMPTS = [Attempt(2, 5), Attempt(1, 8), Attempt(4, None)]


def train_recorded(payload: dict[str, Any], topology: Topology) -> None:
    """Train, and write a line for each step that this rank has taken."""
    config = parse_config(payload["config"], "here")
    ledger = Path(payload["ledger"]) / f"{payload['attempt']}-{topology.rank}"
    forward_backward = Engine.forward_backward
    update = Engine.update
    rows: list[list[int]] = []

    def noted(engine: Engine, batches: list[dict[str, Any]], *arguments: Any) -> Any:
        rows.clear()
        for batch in batches:
            rows.extend(batch["tokens"].tolist())
        return forward_backward(engine, batches, *arguments)

    def recorded(engine: Engine, *arguments: Any, **options: Any) -> Any:
        result = update(engine, *arguments, **options)
        step = run.progress.step + 1
        with ledger.open("a") as file:
            print(json.dumps({"step": step, "tokens": rows}), file=file)
        if step == payload["last_step"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    patches = patch.multiple(Engine, forward_backward=noted, update=recorded)
    with patches, hold(RunFolder(Path(config.run.directory)).lease, topology) as lease:
        run = build_trainer(config, open_run_data(config), topology, lease, Start("auto"))
        run.train()


@pytest.mark.slow
def test_every_sequence_is_trained_on_once_in_an_epoch(data_directory: Path, tmp_path: Path) -> None:
    """A mixture of two corpora, read in windows, with changing weights and growing sequences.

    Each sequence of a corpus occurs as often as the corpus has finished epochs, or once more, counting only the last attempt
    at each step. Steps that were trained again have the same samples.
    """
    config = mixture_config(data_directory, tmp_path)
    ledger = tmp_path / "ledger"
    ledger.mkdir()
    for number, attempt in enumerate(ATTEMPTS):
        train(config, ledger, number, attempt, tmp_path / f"workers{number}")

    attempts_by_step = tags_by_step(ledger)

    check_repeated_steps(attempts_by_step)
    counts: Counter[Tag] = Counter()
    for step in range(1, STEPS + 1):
        attempts = attempts_by_step[step]
        counts.update(attempts[max(attempts)])
    last_metrics = list(read_steps(tmp_path / "run" / "metrics.jsonl"))[-1]
    num_samples = last_metrics["corpora"]
    assert num_samples == {"first": 59, "second": 37}
    for corpus in NUM_SHARDS:
        check_epochs(counts, corpus, num_samples[corpus])
    assert counts.total() == STEPS * SAMPLES_PER_STEP * CHUNKS_PER_SAMPLE


def mixture_config(data_directory: Path, folder: Path) -> dict[str, Any]:
    """Write the two corpora. Returns the configuration of a run that trains on them."""
    config = small_config(data_directory, folder / "run")
    for offset, corpus in enumerate(NUM_SHARDS):
        write_tagged(data_directory, folder / corpus, NUM_SHARDS[corpus], offset)
    step_tokens = SAMPLES_PER_STEP * SAMPLE_TOKENS
    config["data"] = {
        "mixture": {
            "first": {"path": str(folder / "first"), "weight": 2},
            "second": {"path": str(folder / "second"), "weight": 1},
        },
        "annealing": [{"tokens": 8 * step_tokens, "weights": {"first": 1, "second": 1}}],
        "length_warmup": [{"tokens": 3 * step_tokens, "length": CHUNK_TOKENS}],
        "window": 2,
        "sequence_length": SAMPLE_TOKENS,
    }
    config["training"] |= {"steps": STEPS, "micro_batch_size": 2}
    config["checkpoint"] = {"interval": 3, "keep": 9}
    config["evaluation"]["interval"] = 100
    return config


def train(config: dict[str, Any], ledger: Path, number: int, attempt: Attempt, folder: Path) -> None:
    payload = {"config": config, "ledger": str(ledger), "attempt": number, "last_step": attempt.last_step}
    with start_workers("tests.end_to_end.test_samples:train_recorded", attempt.num_ranks, payload, folder) as workers:
        statuses = workers.statuses()
    if attempt.last_step is None:
        assert statuses == [0] * attempt.num_ranks, workers.logs()
    else:
        assert 0 not in statuses, workers.logs()


def tags_by_step(ledger: Path) -> dict[int, dict[int, Counter[Tag]]]:
    """Return the tags that all ranks have trained on: step -> attempt -> tags."""
    attempts_by_step: dict[int, dict[int, Counter[Tag]]] = {}
    for path in sorted(ledger.iterdir()):
        attempt = int(path.name[0])
        for entry in read_entries(path):
            step = entry["step"]
            tags = attempts_by_step.setdefault(step, {}).setdefault(attempt, Counter())
            expected_length = CHUNK_TOKENS if step <= 3 else SAMPLE_TOKENS
            for row in entry["tokens"]:
                assert len(row) == expected_length
                tags.update(tags_of(row))
    return attempts_by_step


def check_repeated_steps(attempts_by_step: dict[int, dict[int, Counter[Tag]]]) -> None:
    repeated = {step: list(attempts) for step, attempts in attempts_by_step.items() if len(attempts) > 1}
    assert repeated == {4: [0, 1], 5: [0, 1], 7: [1, 2], 8: [1, 2]}
    for step, attempts in attempts_by_step.items():
        first, *others = attempts.values()
        for other in others:
            assert other == first, step


def check_epochs(counts: Counter[Tag], corpus: str, num_samples: int) -> None:
    """Check that the samples of a corpus are one epoch and a part of the second."""
    num_chunks = NUM_SHARDS[corpus] * SAMPLES_PER_SHARD * CHUNKS_PER_SAMPLE
    # A shard's last sample has no next token.
    usable = [chunk for chunk in range(num_chunks) if chunk // CHUNKS_PER_SAMPLE % SAMPLES_PER_SHARD != SAMPLES_PER_SHARD - 1]
    num_trained = num_samples * CHUNKS_PER_SAMPLE
    num_twice = num_trained - len(usable)
    occurrences = Counter(counts[corpus, chunk] for chunk in usable)
    assert occurrences == {1: len(usable) - num_twice, 2: num_twice}


def write_tagged(source: Path, directory: Path, num_shards: int, offset: int) -> None:
    """Write a data directory in which every chunk begins with its tag.

    Args:
        source: Data directory that has the tokenizer.
        directory: New folder.
        num_shards: Number of shards.
        offset: Number of the corpus, added to the second digit.
    """
    directory.mkdir()
    index = load_index(source)
    for name in index.tokenizer.files:
        shutil.copy(source / name, directory)
    stream = np.full(num_shards * SAMPLES_PER_SHARD * SAMPLE_TOKENS, FIRST_DIGIT_ID - 1)
    chunks = np.arange(stream.size // CHUNK_TOKENS)
    stream[::CHUNK_TOKENS] = FIRST_DIGIT_ID + chunks % NUM_DIGITS
    stream[1::CHUNK_TOKENS] = FIRST_DIGIT_ID + offset * NUM_DIGITS + chunks // NUM_DIGITS
    splits = {}
    for split in index.splits:
        writer = SplitWriter(
            directory,
            split,
            index.tokenizer.vocab_size,
            index.tokenizer.eos_id,
            member_tokens=SAMPLES_PER_SHARD * SAMPLE_TOKENS // 2,
            members_per_shard=2,
        )
        writer.add(stream, text_bytes=stream.size)
        splits[split] = writer.close()
    save_index(Index(index.tokenizer, index.dtype, {"kind": "test"}, 0.5, splits), directory)


def tags_of(row: list[int]) -> list[Tag]:
    """Return the tags in a row of tokens."""
    corpora = list(NUM_SHARDS)
    tags = []
    for low, high in zip(row[::CHUNK_TOKENS], row[1::CHUNK_TOKENS], strict=True):
        offset, digit = divmod(high - FIRST_DIGIT_ID, NUM_DIGITS)
        chunk = digit * NUM_DIGITS + low - FIRST_DIGIT_ID
        tags.append((corpora[offset], chunk))
    return tags
