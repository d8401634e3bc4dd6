import numpy as np
import pytest

from megatape.data.dataset import TokenDataset


@pytest.mark.parametrize("length", [1, 7, 64, 65, 500])
def test_samples_tile_the_stream_across_members_and_shards(make_directory, documents, length):
    stream = np.concatenate(documents)
    dataset = TokenDataset(make_directory(documents), "train", length)
    assert dataset.num_tokens == stream.size
    assert dataset.num_samples == (stream.size - 1) // length
    samples = [dataset.sample(index) for index in range(dataset.num_samples)]
    assert all(sample.dtype == np.int64 and sample.shape == (length + 1,) for sample in samples)
    targets = np.concatenate([sample[1:] for sample in samples])
    inputs = np.concatenate([sample[:-1] for sample in samples])
    assert np.array_equal(targets, stream[1 : 1 + targets.size])
    assert np.array_equal(inputs, stream[: targets.size])


def test_longest_sample_is_the_whole_split(make_directory, documents):
    stream = np.concatenate(documents)
    directory = make_directory(documents)
    assert np.array_equal(TokenDataset(directory, "train", stream.size - 1).sample(0), stream)
    with pytest.raises(
        ValueError,
        match=rf"sequence length is {stream.size}, .* has {stream.size} tokens .*choose 1 to {stream.size - 1}",
    ):
        TokenDataset(directory, "train", stream.size)
    with pytest.raises(ValueError, match="sequence length is 0"):
        TokenDataset(directory, "train", 0)


def test_sample_out_of_range(make_directory, documents):
    dataset = TokenDataset(make_directory(documents), "train", 10)
    for index in (-1, dataset.num_samples):
        with pytest.raises(IndexError):
            dataset.sample(index)


def test_unknown_split(make_directory, documents):
    with pytest.raises(ValueError, match="split is 'test': choose one of train, validation"):
        TokenDataset(make_directory(documents), "test", 10)


def test_attributes(make_directory, documents):
    dataset = TokenDataset(make_directory(documents), "validation", 10)
    assert (dataset.vocab_size, dataset.bos_id, dataset.eos_id) == (100, 1, 2)
    assert dataset.tokenizer_hash == "0" * 64
    assert 4 < dataset.unigram_entropy < np.log(100)


def test_fingerprint_follows_the_content_alone(make_directory, documents):
    first = TokenDataset(make_directory(documents, name="a"), "train", 10).fingerprint
    assert first == TokenDataset(make_directory(documents, name="b"), "train", 20).fingerprint
    changed = [*documents[:-1], documents[-1] + (documents[-1] == 50)]
    changed[7] = changed[7].copy()
    changed[7][1] = 99 - changed[7][1] % 90
    assert first != TokenDataset(make_directory(changed, name="c"), "train", 10).fingerprint
