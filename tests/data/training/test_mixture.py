"""Mixtures: exact shares at every place, the order that each corpus has alone, fingerprints, and data and weights refused."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatape.config import Config
from megatape.config.batches import BatchSizes
from megatape.config.data import CorpusConfig, DataConfig
from megatape.data.shards.entries import TokenizerEntry
from megatape.data.shards.index import load_index, save_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.corpus_names import without_unnamed
from megatape.data.training.epoch_limits import check_epochs
from megatape.data.training.loader import Loader
from megatape.data.training.mixture import Mixture
from megatape.data.training.order import sample_index
from megatape.data.training.token_dataset import TokenDataset
from tests.helpers.data.data_directory import Documents, MakeDirectory
from tests.helpers.runs.batches import interleaved, mixture_of, rows
from tests.helpers.runs.run_data import open_run_data

LENGTH = 16
SEED = 3


@pytest.fixture
def corpora(make_directory: MakeDirectory, documents: Documents) -> dict[str, TokenDataset]:
    """Three of different sizes, whose tokens lie in different ranges."""
    parts = {"books": documents[:60], "code": documents[60:100], "web": documents[100:]}
    return {name: TokenDataset(StoredSplit(make_directory(part, name=name), "train"), LENGTH) for name, part in parts.items()}


def mixture(corpora: dict[str, TokenDataset], **changes: Any) -> Mixture:
    weights = changes.pop("weights", {"books": 0.5, "code": 1, "web": 1.25})
    settings: dict[str, Any] = {
        "mixture": {name: {"path": name, "weight": weights.get(name)} for name in corpora},
        "sequence_length": LENGTH,
    }
    return Mixture(DataConfig(**settings, **changes), dict(corpora), SEED)


def test_every_corpus_has_the_order_that_it_has_alone(corpora: dict[str, TokenDataset]) -> None:
    """Over epochs of it, and every sample is one of the corpus whose turn it is."""
    mixed = mixture(corpora)
    assert mixed.shares == pytest.approx({"books": 2 / 11, "code": 4 / 11, "web": 5 / 11})
    samples = 4 * sum(dataset.num_samples for dataset in corpora.values())
    taken = [mixed.sample(place).tokens for place in range(samples)]
    used = mixed.order.counts(samples)
    assert sum(used.values()) == samples
    assert used["code"] > corpora["code"].num_samples
    for name, dataset in corpora.items():
        turns = [place for place in range(samples) if mixed.order.counts(place + 1)[name] > mixed.order.counts(place)[name]]
        assert len(turns) == used[name]
        alone = mixture_of(dataset, SEED)
        for earlier, place in enumerate(turns):
            assert np.array_equal(taken[place], alone.sample(earlier).tokens), (name, earlier)


def test_every_data_parallel_size_sees_the_same_mixture(corpora: dict[str, TokenDataset]) -> None:
    mixed = mixture(corpora, annealing=[{"tokens": 20 * LENGTH, "weights": {"books": 0, "code": 1, "web": 3}}])

    def step(rank: int, world_size: int, consumed: int) -> list[Any]:
        sizes: dict[str, Any] = {"batches": BatchSizes(8), "micro_batch_size": 2}
        return Loader(mixed, rank=rank, world_size=world_size, **sizes).step(consumed)

    for consumed in (0, 16, 24):  # the second step has both weights
        whole = rows(step(0, 1, consumed))
        for world_size in (2, 4):
            ranks = [step(rank, world_size, consumed) for rank in range(world_size)]
            assert rows(interleaved(ranks)) == whole
    assert mixed.order.counts(28)["books"] == mixed.order.counts(20)["books"] == 4


def test_order_of_corpora_in_the_configuration_has_no_effect(corpora: dict[str, TokenDataset]) -> None:
    """And the fingerprint is that of data and first weights; 1, 2, 2.5 are the same as 2, 4, 5."""
    one = mixture(corpora)
    turned = mixture(dict(reversed(corpora.items())), weights={"books": 2, "code": 4, "web": 5})
    assert one.fingerprint == turned.fingerprint
    for place in range(30):
        assert np.array_equal(one.sample(place).tokens, turned.sample(place).tokens)
    others = [
        mixture(corpora, weights={"books": 1, "code": 1, "web": 1}),
        mixture(corpora, weights={}),
        mixture(corpora, weights={}, temperature=2.0),
        mixture({name: corpora[name] for name in ("books", "code")}),
        mixture({"books": corpora["books"], "code": corpora["web"], "web": corpora["code"]}),
    ]
    assert len({one.fingerprint, *(other.fingerprint for other in others)}) == 6


def test_filled_share_is_weighted_by_corpora(corpora: dict[str, TokenDataset]) -> None:
    """Packed corpora exactly, whatever their shares round to; others by their shares."""
    weights = {"books": 0.1, "code": 0.2, "web": 0.4}
    assert mixture(corpora, weights=weights).filled == 1
    corpora["code"].filled = 0.5
    assert mixture(corpora, weights=weights).filled == pytest.approx(1 - 0.5 * 2 / 7)


def test_epochs_are_counted_ahead(corpora: dict[str, TokenDataset]) -> None:
    available = corpora["code"].num_samples
    allowing = mixture(corpora)
    settings = {name: CorpusConfig(path=name) for name in corpora}
    settings["code"] = CorpusConfig(path="code", max_epochs=2)
    steps = next(step for step in itertools.count() if allowing.order.counts(8 * step)["code"] > 2 * available)
    check_epochs(allowing, settings, steps - 1, BatchSizes(8))
    message = rf"data\.mixture\.code: training.steps {steps + 5} use .* max_epochs is 2, which ends in step {steps}: lower"
    with pytest.raises(ValueError, match=message):
        check_epochs(allowing, settings, steps + 5, BatchSizes(8))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"sha256": "1" * 64}, r"sha256 0000.* and 1111.*, bos_id and eos_id \(1, 2\) and \(1, 2\)"),
        ({"eos_id": 5}, r"sha256 0000.* and 0000.*, bos_id and eos_id \(1, 2\) and \(1, 5\)"),
    ],
)
def test_other_tokenizers_are_refused(
    corpora: dict[str, TokenDataset], tmp_path: Path, other: dict[str, Any], message: str
) -> None:
    """And the same one whose documents end otherwise: samples would be padded with the end of another corpus."""
    index = load_index(tmp_path / "code")
    entry = TokenizerEntry(**{**vars(index.tokenizer), **other})
    save_index(type(index)(**{**vars(index), "tokenizer": entry}), tmp_path / "code")
    code = TokenDataset(StoredSplit(tmp_path / "code", "train"), LENGTH)
    with pytest.raises(ValueError, match=rf"books \(books\) and code \(code\) have different tokenizers \({message}"):
        mixture(corpora | {"code": code})


def test_a_corpus_alone_is_a_mixture_of_one(corpora: dict[str, TokenDataset]) -> None:
    """Its order and fingerprint are its own, as runs and checkpoints of data.path have always had them, and reports of corpora
    do not list it."""
    alone = mixture_of(corpora["web"], SEED)
    size = corpora["web"].num_samples
    for consumed in range(2 * size):
        assert alone.order.locate(consumed)[:2] == ("", sample_index(consumed, size, SEED))
    assert (alone.fingerprint, alone.shares) == (corpora["web"].fingerprint, {"": 1.0})
    assert alone.order.counts(7) == {"": 7}
    assert without_unnamed(alone.order.counts(7)) == {}
    assert alone.describe(7) == ""


@pytest.mark.parametrize("field, value", [("eos_id", 3), ("bos_id", None), ("vocab_size", 299)])
def test_ids_that_are_not_the_tokenizers(
    data_directory: Path, raw_config: dict[str, Any], tmp_path: Path, field: str, value: int | None
) -> None:
    """Documents that end with another token would have other masks: refused alone, and in a mixture at any place."""
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
        name: {"path": str(path), "weight": 1.0} for name, path in (("a", data_directory), ("b", copy))
    }
    with pytest.raises(ValueError, match=message):
        open_run_data(Config.model_validate(raw_config))
