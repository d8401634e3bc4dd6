import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatape.config import Config
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.data.training.dataset import DocumentDataset, TokenDataset
from megatape.data.training.splits import open_data
from megatape.targets import IGNORE_INDEX
from tests.helpers.data_directory import Documents, MakeDirectory, write_documents


@pytest.mark.parametrize("length", [1, 7, 64, 65, 500])
def test_samples_tile_the_stream_across_members_and_shards(
    make_directory: MakeDirectory, documents: Documents, length: int
) -> None:
    stream = np.concatenate(documents)
    dataset = TokenDataset(make_directory(documents), "train", length)
    assert dataset.num_tokens == stream.size
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
    assert np.array_equal(TokenDataset(directory, "train", stream.size - 1).tokens(0), stream)
    with pytest.raises(
        ValueError,
        match=rf"sequence length is {stream.size}, .* has {stream.size} tokens .*choose 1 to {stream.size - 1}",
    ):
        TokenDataset(directory, "train", stream.size)
    with pytest.raises(ValueError, match="sequence length is 0"):
        TokenDataset(directory, "train", 0)


def test_sample_out_of_range(make_directory: MakeDirectory, documents: Documents) -> None:
    dataset = TokenDataset(make_directory(documents), "train", 10)
    for index in (-1, dataset.num_samples):
        with pytest.raises(IndexError):
            dataset.sample(index)


def test_unknown_split(make_directory: MakeDirectory, documents: Documents) -> None:
    with pytest.raises(ValueError, match="split is 'test': choose one of train, validation"):
        TokenDataset(make_directory(documents), "test", 10)


def test_attributes(make_directory: MakeDirectory, documents: Documents) -> None:
    dataset = TokenDataset(make_directory(documents), "validation", 10)
    assert (dataset.vocab_size, dataset.bos_id, dataset.eos_id) == (100, 1, 2)
    assert dataset.tokenizer_hash == "0" * 64
    assert 4 < dataset.unigram_entropy < np.log(100)


def test_fingerprint_follows_the_content_alone(make_directory: MakeDirectory, documents: Documents) -> None:
    first = TokenDataset(make_directory(documents, name="a"), "train", 10).fingerprint
    assert first == TokenDataset(make_directory(documents, name="b"), "train", 20).fingerprint
    changed = [*documents[:-1], documents[-1] + (documents[-1] == 50)]
    changed[7] = changed[7].copy()
    changed[7][1] = 99 - changed[7][1] % 90
    assert first != TokenDataset(make_directory(changed, name="c"), "train", 10).fingerprint


@pytest.mark.parametrize("length", [40, 41, 64, 130])
def test_a_document_is_a_sample(make_directory: MakeDirectory, documents: Documents, length: int) -> None:
    """Every document in order, across members (64 tokens) and shards (three members), followed by padding only."""
    whole = [document for document in documents if document.size <= 41]
    dataset = DocumentDataset(make_directory(whole), "train", length)
    assert dataset.num_samples == len(whole)
    for index, document in enumerate(whole):
        sample = dataset.sample(index)
        assert (sample.tokens.dtype, sample.tokens.shape) == (np.int64, (length,))
        assert np.array_equal(sample.tokens[: document.size], document[:length])
        assert (sample.tokens[document.size :] == dataset.eos_id).all()
        expected = np.full(length, IGNORE_INDEX)
        expected[: document.size - 1] = document[1:]
        assert np.array_equal(sample.targets, expected)


def test_a_document_longer_than_a_sample(make_directory: MakeDirectory, documents: Documents) -> None:
    with pytest.raises(
        ValueError, match=r"sequence length is 39, .* the longest of its 200 has 41 tokens: raise data.sequence_len"
    ):
        DocumentDataset(make_directory(documents), "train", 39)


def test_targets_after_a_prompt(tmp_path: Path) -> None:
    """Only the tokens after the first prompt end are targets: the answer and the end token."""
    tokenizer = SentencePieceTokenizer(train_tokenizer(["ab="], 256 + 3 + 3))
    texts = ["a=b", "abab=", "=a=b"]
    write_documents(tmp_path, texts, tokenizer)
    dataset = DocumentDataset(tmp_path, "train", 7, "=")
    answers = [[*tokenizer.encode(text.split("=", 1)[1]), tokenizer.eos_id] for text in texts]
    for index, answer in enumerate(answers):
        sample = dataset.sample(index)
        wanted = sample.targets != IGNORE_INDEX
        assert sample.targets[wanted].tolist() == answer
        assert np.array_equal(sample.targets[:-1][wanted[:-1]], sample.tokens[1:][wanted[:-1]])
    with pytest.raises(ValueError, match="data.prompt_end 'ab' is 2 tokens of the tokenizer"):
        DocumentDataset(tmp_path, "train", 7, "ab")
    other = DocumentDataset(tmp_path, "train", 7, "b")
    assert (other.sample(0).targets != IGNORE_INDEX).sum() == 1
    with_digit = tmp_path / "other"
    with_digit.mkdir()
    write_documents(with_digit, ["aa"], tokenizer)
    dataset = DocumentDataset(with_digit, "train", 7, "=")
    with pytest.raises(ValueError, match="a document of split train of .* has no '='"):
        dataset.sample(0)


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
        open_data(Config.model_validate(raw_config))
    del raw_config["data"]["path"]
    raw_config["data"]["mixture"] = {
        name: {"path": str(path), "weight": 1.0} for name, path in (("a", data_directory), ("b", copy))
    }
    with pytest.raises(ValueError, match=message):
        open_data(Config.model_validate(raw_config))
