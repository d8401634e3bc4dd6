"""The ledger of a run: which sequences its steps really trained on, over kills, resumes and other numbers of ranks."""

import json
import os
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from megatape.config import parse_config
from megatape.data.shards.entries import Index
from megatape.data.shards.index import load_index, save_index
from megatape.data.shards.writer import SplitWriter
from megatape.distributed.topology import Topology
from megatape.reliability.lease import hold
from megatape.run_folder import RunFolder, read_metrics
from megatape.training.start import Start
from megatape.training.startup.build_trainer import build_trainer
from megatape.zero.engine import Engine
from tests.helpers.processes.workers import Workers
from tests.helpers.runs.run_data import open_run_data
from tests.helpers.runs.small_run import small_config

# tokens of a sample and of what has a tag, samples of a shard
LENGTH = 32
TAGGED = 8
SHARD = 8
# the first id of tags, and how many digits they have
BASE = 10
CODES = 90


def train_recorded(payload: dict[str, Any], topology: Topology) -> None:
    """Train until the step "die", at whose end all ranks kill themselves. Every step that a rank has taken leaves a line."""
    config = parse_config(payload["config"], "here")
    ledger = Path(payload["ledger"]) / f"{payload['attempt']}-{topology.rank}"
    forward_backward = Engine.forward_backward
    update = Engine.update
    seen: list[list[int]] = []

    def noted(engine: Engine, batches: list[dict[str, Any]], *rest: Any) -> Any:
        seen[:] = [row for batch in batches for row in batch["tokens"].tolist()]
        return forward_backward(engine, batches, *rest)

    def recorded(engine: Engine, *arguments: Any, **options: Any) -> Any:
        taken = update(engine, *arguments, **options)
        with ledger.open("a") as file:
            print(json.dumps({"step": run.state.step + 1, "tokens": seen}), file=file)
        if run.state.step + 1 == payload["die"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return taken

    patches = patch.multiple(Engine, forward_backward=noted, update=recorded)
    with patches, hold(RunFolder(Path(config.run.directory)).lease, topology) as lease:
        run = build_trainer(config, open_run_data(config), topology, lease, Start("auto"))
        run.train()


@pytest.mark.slow
def test_every_sequence_is_trained_on_once_in_an_epoch(data_directory: Path, tmp_path: Path) -> None:
    """A mixture of two corpora, read in windows, with changing weights and growing sequences: each sequence of each corpus
    occurs in the steps that count as often as the epochs that are over, or once more; repeated steps are the same."""
    config = small_config(data_directory, tmp_path / "run")
    corpora = {"first": 5, "second": 3}  # shards
    for offset, (name, shards) in enumerate(corpora.items()):
        write_tagged(data_directory, tmp_path / name, shards, offset)
    config["data"] = {
        "mixture": {name: {"path": str(tmp_path / name), "weight": 2 - place} for place, name in enumerate(corpora)},
        "annealing": [{"tokens": 8 * 8 * LENGTH, "weights": {"first": 1, "second": 1}}],
        "length_warmup": [{"tokens": 3 * 8 * LENGTH, "length": TAGGED}],
        "window": 2,
        "sequence_length": LENGTH,
    }
    config["training"] |= {"steps": 12, "micro_batch_size": 2}
    config["checkpoint"] = {"interval": 3, "keep": 9}
    config["evaluation"]["interval"] = 100
    (tmp_path / "ledger").mkdir()
    for attempt, (world_size, die) in enumerate([(2, 5), (1, 8), (4, 0)]):
        folder = tmp_path / f"workers{attempt}"
        folder.mkdir()
        payload = {"config": config, "ledger": str(tmp_path / "ledger"), "attempt": attempt, "die": die}
        (folder / "payload.json").write_text(json.dumps(payload))
        with Workers("tests.end_to_end.test_samples:train_recorded", world_size, folder) as workers:
            statuses = workers.statuses()
            assert all(statuses) if die else not any(statuses), workers.logs()

    made: dict[int, dict[int, Counter[tuple[str, int]]]] = {}  # the tags of a step, by attempt
    for path in sorted((tmp_path / "ledger").iterdir()):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            tags = Counter(tag for row in entry["tokens"] for tag in tags_of(row, list(corpora)))
            made.setdefault(entry["step"], {}).setdefault(int(path.name[0]), Counter()).update(tags)
            assert {len(row) for row in entry["tokens"]} == {TAGGED if entry["step"] <= 3 else LENGTH}
    assert {step: list(attempts) for step, attempts in made.items() if len(attempts) > 1} == {
        4: [0, 1],
        5: [0, 1],
        7: [1, 2],
        8: [1, 2],
    }
    assert all(len({frozenset(tags.items()) for tags in attempts.values()}) == 1 for attempts in made.values())
    counted = Counter[tuple[str, int]]()
    for step in range(1, 13):
        counted.update(made[step][max(made[step])])
    used = json.loads(list(read_metrics(tmp_path / "run" / "metrics.jsonl").values())[-1])["corpora"]
    assert used == {"first": 59, "second": 37}
    for name, shards in corpora.items():
        # The last sample of a shard has no next token.
        expected = [tag for tag in range(shards * SHARD * LENGTH // TAGGED) if tag // (LENGTH // TAGGED) % SHARD != SHARD - 1]
        parts = used[name] * (LENGTH // TAGGED)
        assert Counter(counted[name, tag] for tag in expected) == {1: 2 * len(expected) - parts, 2: parts - len(expected)}
    assert sum(counted.values()) == 12 * 8 * LENGTH // TAGGED


def write_tagged(source: Path, directory: Path, shards: int, offset: int) -> None:
    """A data directory whose every TAGGED tokens begin with two digits of their number."""
    directory.mkdir()
    index = load_index(source)
    for name in index.tokenizer.files:
        shutil.copy(source / name, directory)
    stream = np.full(shards * SHARD * LENGTH, BASE - 1)
    numbers = np.arange(stream.size // TAGGED)
    stream[::TAGGED] = BASE + numbers % CODES
    stream[1::TAGGED] = BASE + offset * CODES + numbers // CODES
    splits = {}
    for split in index.splits:
        writer = SplitWriter(
            directory,
            split,
            index.tokenizer.vocab_size,
            index.tokenizer.eos_id,
            member_tokens=SHARD * LENGTH // 2,
            members_per_shard=2,
        )
        writer.add(stream, text_bytes=stream.size)
        splits[split] = writer.close()
    save_index(Index(index.tokenizer, index.dtype, {"kind": "test"}, 0.5, splits), directory)


def tags_of(row: list[int], names: list[str]) -> list[tuple[str, int]]:
    """Name of the corpus and number of everything that has a tag in a row of tokens."""
    found = []
    for low, high in zip(row[::TAGGED], row[1::TAGGED], strict=True):
        offset, digit = divmod(high - BASE, CODES)
        found.append((names[offset], digit * CODES + low - BASE))
    return found
