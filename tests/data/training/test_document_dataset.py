"""Samples of one document each, and the part of it that is learned."""

from pathlib import Path

import numpy as np
import pytest

from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.data.training.document_dataset import DocumentDataset
from megatape.targets import IGNORE_INDEX
from tests.helpers.data_directory import Documents, MakeDirectory, write_documents


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
