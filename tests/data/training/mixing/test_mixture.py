"""Mixtures: each corpus keeps its own order, fingerprints follow data and weights, and data that does not fit is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatape.config import Config
from megatape.config.sections.batches import BatchSizes
from megatape.config.sections.data import CorpusConfig, DataConfig
from megatape.data.shards.index import load_index, save_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.batches.batch import Batch
from megatape.data.training.batches.loader import Loader
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.data.training.mixing.corpus_names import without_unnamed
from megatape.data.training.mixing.epoch_limits import check_epochs
from megatape.data.training.mixing.mixture import Mixture
from megatape.data.training.mixing.order import sample_index
from tests.helpers.data.data_directory import Documents, MakeDirectory
from tests.helpers.runs.batches import interleaved, mixture_of, rows
from tests.helpers.runs.run_data import open_run_data

LENGTH = 16
SEED = 3


@pytest.fixture
def corpora(make_directory: MakeDirectory, documents: Documents) -> dict[str, TokenDataset]:
    """Three corpora of different sizes."""
    parts = {"books": documents[:60], "code": documents[60:100], "web": documents[100:]}
    return {name: TokenDataset(StoredSplit(make_directory(part, name=name), "train"), LENGTH) for name, part in parts.items()}


def mix(corpora: dict[str, TokenDataset], weights: dict[str, float] | None = None, **settings: Any) -> Mixture:
    """Mix corpora, in the proportion 2 : 4 : 5 by default. Corpora without a weight are weighted by size."""
    if weights is None:
        weights = {"books": 0.5, "code": 1, "web": 1.25}
    entries = {name: CorpusConfig(path=name, weight=weights.get(name)) for name in corpora}
    data = DataConfig(mixture=entries, sequence_length=LENGTH, **settings)
    return Mixture(data, dict(corpora), SEED)


def test_every_corpus_has_the_order_that_it_has_alone(corpora: dict[str, TokenDataset]) -> None:
    """Covers several epochs of a corpus. Every sample comes from the corpus whose turn it is."""
    mixture = mix(corpora)
    assert mixture.shares == pytest.approx({"books": 2 / 11, "code": 4 / 11, "web": 5 / 11})

    num_samples = 4 * sum(dataset.num_samples for dataset in corpora.values())
    samples = [mixture.sample(consumed).tokens for consumed in range(num_samples)]
    counts = [mixture.order.counts(consumed) for consumed in range(num_samples + 1)]
    assert sum(counts[-1].values()) == num_samples
    assert counts[-1]["code"] > corpora["code"].num_samples

    for name, dataset in corpora.items():
        turns = [consumed for consumed in range(num_samples) if counts[consumed + 1][name] > counts[consumed][name]]
        assert len(turns) == counts[-1][name]
        alone = mixture_of(dataset, SEED)
        for earlier, consumed in enumerate(turns):
            assert np.array_equal(samples[consumed], alone.sample(earlier).tokens), (name, earlier)


def test_every_data_parallel_size_sees_the_same_mixture(corpora: dict[str, TokenDataset]) -> None:
    annealing = [{"tokens": 20 * LENGTH, "weights": {"books": 0, "code": 1, "web": 3}}]
    mixture = mix(corpora, annealing=annealing)

    def step(rank: int, world_size: int, consumed: int) -> list[Batch]:
        loader = Loader(mixture, rank=rank, world_size=world_size, batches=BatchSizes(8), micro_batch_size=2)
        return loader.step(consumed)

    for consumed in (0, 16, 24):  # the second step has both weights
        expected = rows(step(0, 1, consumed))
        for world_size in (2, 4):
            ranks = [step(rank, world_size, consumed) for rank in range(world_size)]
            assert rows(interleaved(ranks)) == expected
    assert mixture.order.counts(20)["books"] == 4
    assert mixture.order.counts(28)["books"] == 4


def test_neither_order_nor_scale_of_the_weights_matters(corpora: dict[str, TokenDataset]) -> None:
    """1, 2, 2.5 are the same weights as 2, 4, 5."""
    mixture = mix(corpora)
    reordered = mix(dict(reversed(corpora.items())), weights={"books": 2, "code": 4, "web": 5})
    assert reordered.fingerprint == mixture.fingerprint
    for consumed in range(30):
        assert np.array_equal(reordered.sample(consumed).tokens, mixture.sample(consumed).tokens)


def test_the_fingerprint_depends_on_data_and_first_weights(corpora: dict[str, TokenDataset]) -> None:
    mixtures = [
        mix(corpora),
        mix(corpora, weights={"books": 1, "code": 1, "web": 1}),
        mix(corpora, weights={}),
        mix(corpora, weights={}, temperature=2.0),
        mix({name: corpora[name] for name in ("books", "code")}),
        mix({"books": corpora["books"], "code": corpora["web"], "web": corpora["code"]}),
    ]
    fingerprints = [mixture.fingerprint for mixture in mixtures]
    assert len(set(fingerprints)) == len(fingerprints)


def test_filled_share_is_weighted_by_corpora(corpora: dict[str, TokenDataset]) -> None:
    """The share is exactly 1 if every corpus is filled, although the weights of the corpora are rounded."""
    weights = {"books": 0.1, "code": 0.2, "web": 0.4}
    assert mix(corpora, weights=weights).filled == 1

    corpora["code"].filled = 0.5
    assert mix(corpora, weights=weights).filled == pytest.approx(1 - 0.5 * 2 / 7)


def test_a_run_beyond_the_epoch_limit_is_refused(corpora: dict[str, TokenDataset]) -> None:
    """The message names the step at which the limit is exceeded."""
    mixture = mix(corpora)
    settings = {name: CorpusConfig(path=name) for name in corpora}
    settings["code"] = CorpusConfig(path="code", max_epochs=2)
    steps = 0
    while mixture.order.counts(8 * steps)["code"] <= 2 * corpora["code"].num_samples:
        steps += 1

    check_epochs(mixture, settings, steps - 1, BatchSizes(8))
    message = rf"data\.mixture\.code: training.steps {steps + 5} use .* max_epochs is 2, which ends in step {steps}: lower"
    with pytest.raises(ValueError, match=message):
        check_epochs(mixture, settings, steps + 5, BatchSizes(8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sha256": "1" * 64}, r"sha256 0000.* and 1111.*, bos_id and eos_id \(1, 2\) and \(1, 2\)"),
        ({"eos_id": 5}, r"sha256 0000.* and 0000.*, bos_id and eos_id \(1, 2\) and \(1, 5\)"),
    ],
)
def test_corpora_of_different_tokenizers_are_refused(
    corpora: dict[str, TokenDataset], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """The same tokenizer with another end token counts as different: samples are padded with one end token."""
    index = load_index(tmp_path / "code")
    tokenizer = replace(index.tokenizer, **changes)
    save_index(replace(index, tokenizer=tokenizer), tmp_path / "code")
    code = TokenDataset(StoredSplit(tmp_path / "code", "train"), LENGTH)
    with pytest.raises(ValueError, match=rf"books \(books\) and code \(code\) have different tokenizers \({message}"):
        mix(corpora | {"code": code})


def test_a_corpus_alone_is_a_mixture_of_one(corpora: dict[str, TokenDataset]) -> None:
    """A single corpus keeps its order and fingerprint, on which old checkpoints of data.path rely. Reports do not list it."""
    mixture = mixture_of(corpora["web"], SEED)
    size = corpora["web"].num_samples
    for consumed in range(2 * size):
        location = mixture.order.locate(consumed)
        assert location[:2] == ("", sample_index(consumed, size, SEED))
    assert mixture.fingerprint == corpora["web"].fingerprint
    assert mixture.shares == {"": 1.0}
    assert mixture.order.counts(7) == {"": 7}
    assert without_unnamed(mixture.order.counts(7)) == {}
    assert mixture.describe(7) == ""


@pytest.mark.parametrize("field, value", [("eos_id", 3), ("bos_id", None), ("vocab_size", 299)])
def test_ids_that_differ_from_the_tokenizers_are_refused(
    data_directory: Path, raw_config: dict[str, Any], tmp_path: Path, field: str, value: int | None
) -> None:
    """Documents ending with another token would be masked differently. Refused alone, and as the second of a mixture."""
    copy = shutil.copytree(data_directory, tmp_path / "copy")
    content = json.loads((copy / "index.json").read_text())
    recorded = content["tokenizer"][field]
    content["tokenizer"][field] = value
    (copy / "index.json").write_text(json.dumps(content))
    message = f"copy/index.json: corrupted, {field} is {value}, but {recorded} by tokenizer.model"

    raw_config["data"]["path"] = str(copy)
    with pytest.raises(ValueError, match=message):
        open_run_data(Config.model_validate(raw_config))

    del raw_config["data"]["path"]
    raw_config["data"]["mixture"] = {
        "a": {"path": str(data_directory), "weight": 1.0},
        "b": {"path": str(copy), "weight": 1.0},
    }
    with pytest.raises(ValueError, match=message):
        open_run_data(Config.model_validate(raw_config))
