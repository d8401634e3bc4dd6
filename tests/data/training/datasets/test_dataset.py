"""Samples of a fixed number of tokens: they tile the stream and depend on the content alone."""

from pathlib import Path

import numpy as np
import pytest

from megatape.data.shards.index import load_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.datasets.token_dataset import TokenDataset
from tests.helpers.data.data_directory import Documents, MakeDirectory


def open_dataset(directory: Path, length: int, split: str = "train", window: int = 0) -> TokenDataset:
    return TokenDataset(StoredSplit(directory, split), length, window=window)


@pytest.mark.parametrize("length", [1, 7, 64, 65, 500])
def test_samples_tile_the_stream_across_members_and_shards(directory: Path, documents: Documents, length: int) -> None:
    stream = np.concatenate(documents)
    dataset = open_dataset(directory, length)
    assert dataset.split.num_tokens == stream.size
    assert dataset.num_samples == (stream.size - 1) // length

    samples = [dataset.sample(index) for index in range(dataset.num_samples)]
    for sample in samples:
        for part in (sample.tokens, sample.targets):
            assert part.dtype == np.int64
            assert part.shape == (length,)
    targets = np.concatenate([sample.targets for sample in samples])
    inputs = np.concatenate([sample.tokens for sample in samples])
    assert np.array_equal(targets, stream[1 : 1 + targets.size])
    assert np.array_equal(inputs, stream[: targets.size])


def test_longest_sample_is_the_whole_split(directory: Path, documents: Documents) -> None:
    stream = np.concatenate(documents)
    assert np.array_equal(open_dataset(directory, stream.size - 1).tokens(0), stream)


def test_a_sequence_length_beyond_the_split_is_refused(directory: Path, documents: Documents) -> None:
    size = np.concatenate(documents).size
    message = rf"sequence length is {size}, .* has {size} tokens .*choose 1 to {size - 1}"
    with pytest.raises(ValueError, match=message):
        open_dataset(directory, size)
    with pytest.raises(ValueError, match="sequence length is 0"):
        open_dataset(directory, 0)


def test_a_sample_out_of_range_is_refused(directory: Path) -> None:
    dataset = open_dataset(directory, 10)
    for index in (-1, dataset.num_samples):
        with pytest.raises(IndexError):
            dataset.sample(index)


def test_an_unknown_split_is_refused(directory: Path) -> None:
    with pytest.raises(ValueError, match="split is 'test': choose one of train, validation"):
        open_dataset(directory, 10, "test")


def test_a_split_has_the_attributes_of_its_index(directory: Path) -> None:
    dataset = open_dataset(directory, 10, "validation")
    assert dataset.split.vocab_size == 100
    assert dataset.split.bos_id == 1
    assert dataset.split.eos_id == 2
    assert dataset.split.tokenizer_hash == "0" * 64
    assert 4 < dataset.unigram_entropy < np.log(100)


def test_fingerprint_depends_on_the_content_alone(make_directory: MakeDirectory, documents: Documents) -> None:
    """Another folder or sequence length keeps the fingerprint; a changed token does not."""
    fingerprint = open_dataset(make_directory(documents, name="a"), 10).fingerprint
    assert fingerprint == open_dataset(make_directory(documents, name="b"), 20).fingerprint

    changed = [*documents[:-1], documents[-1] + (documents[-1] == 50)]
    changed[7] = changed[7].copy()
    changed[7][1] = 99 - changed[7][1] % 90
    assert fingerprint != open_dataset(make_directory(changed, name="c"), 10).fingerprint


def test_samples_of_a_window_need_no_other_shard(directory: Path) -> None:
    """Each shard is cut separately. Every target of a shard occurs once, except for a remainder shorter than a sample."""
    length = 16
    dataset = open_dataset(directory, length, window=2)
    one_token = open_dataset(directory, 1)
    stream = np.concatenate([one_token.tokens(index)[:1] for index in range(one_token.num_samples)])

    number = 0
    start = 0
    for shard in load_index(directory).splits["train"].shards:
        for begin in range(start, start + shard.tokens - length, length):
            assert np.array_equal(dataset.tokens(number), stream[begin : begin + length + 1])
            number += 1
        start += shard.tokens
    assert number == dataset.num_samples
