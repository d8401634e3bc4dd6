"""Samples of a fixed number of tokens: they tile the stream, and follow from the content alone."""

import numpy as np
import pytest

from megatape.data.shards.index import load_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.token_dataset import TokenDataset
from tests.helpers.data.data_directory import Documents, MakeDirectory


@pytest.mark.parametrize("length", [1, 7, 64, 65, 500])
def test_samples_tile_the_stream_across_members_and_shards(
    make_directory: MakeDirectory, documents: Documents, length: int
) -> None:
    stream = np.concatenate(documents)
    dataset = TokenDataset(StoredSplit(make_directory(documents), "train"), length)
    assert dataset.split.num_tokens == stream.size
    assert dataset.num_samples == (stream.size - 1) // length
    samples = [dataset.sample(index) for index in range(dataset.num_samples)]
    for sample in samples:
        assert all(part.dtype == np.int64 and part.shape == (length,) for part in (sample.tokens, sample.targets))
    targets = np.concatenate([sample.targets for sample in samples])
    inputs = np.concatenate([sample.tokens for sample in samples])
    assert np.array_equal(targets, stream[1 : 1 + targets.size])
    assert np.array_equal(inputs, stream[: targets.size])


def test_longest_sample_is_the_whole_split(make_directory: MakeDirectory, documents: Documents) -> None:
    stream = np.concatenate(documents)
    directory = make_directory(documents)
    assert np.array_equal(TokenDataset(StoredSplit(directory, "train"), stream.size - 1).tokens(0), stream)
    with pytest.raises(
        ValueError,
        match=rf"sequence length is {stream.size}, .* has {stream.size} tokens .*choose 1 to {stream.size - 1}",
    ):
        TokenDataset(StoredSplit(directory, "train"), stream.size)
    with pytest.raises(ValueError, match="sequence length is 0"):
        TokenDataset(StoredSplit(directory, "train"), 0)


def test_sample_out_of_range(make_directory: MakeDirectory, documents: Documents) -> None:
    dataset = TokenDataset(StoredSplit(make_directory(documents), "train"), 10)
    for index in (-1, dataset.num_samples):
        with pytest.raises(IndexError):
            dataset.sample(index)


def test_unknown_split(make_directory: MakeDirectory, documents: Documents) -> None:
    with pytest.raises(ValueError, match="split is 'test': choose one of train, validation"):
        TokenDataset(StoredSplit(make_directory(documents), "test"), 10)


def test_attributes(make_directory: MakeDirectory, documents: Documents) -> None:
    dataset = TokenDataset(StoredSplit(make_directory(documents), "validation"), 10)
    assert (dataset.split.vocab_size, dataset.split.bos_id, dataset.split.eos_id) == (100, 1, 2)
    assert dataset.split.tokenizer_hash == "0" * 64
    assert 4 < dataset.unigram_entropy < np.log(100)


def test_fingerprint_follows_the_content_alone(make_directory: MakeDirectory, documents: Documents) -> None:
    first = TokenDataset(StoredSplit(make_directory(documents, name="a"), "train"), 10).fingerprint
    assert first == TokenDataset(StoredSplit(make_directory(documents, name="b"), "train"), 20).fingerprint
    changed = [*documents[:-1], documents[-1] + (documents[-1] == 50)]
    changed[7] = changed[7].copy()
    changed[7][1] = 99 - changed[7][1] % 90
    assert first != TokenDataset(StoredSplit(make_directory(changed, name="c"), "train"), 10).fingerprint


def test_samples_of_a_window_need_no_other_shard(make_directory: MakeDirectory, documents: Documents) -> None:
    """Each shard is cut by itself; every target of a shard occurs once, but for less than a sample at its end."""
    directory = make_directory(documents)
    dataset = TokenDataset(StoredSplit(directory, "train"), 16, window=2)
    whole = TokenDataset(StoredSplit(directory, "train"), 1)
    stream = np.concatenate([whole.tokens(index)[:1] for index in range(whole.num_samples)])
    number = start = 0
    for shard in load_index(directory).splits["train"].shards:
        for begin in range(start, start + shard.tokens - 16, 16):
            assert np.array_equal(dataset.tokens(number), stream[begin : begin + 16 + 1][: 16 + 1])
            number += 1
        start += shard.tokens
    assert number == dataset.num_samples
