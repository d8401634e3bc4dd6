"""Samples of one document each, and targets that begin after a prompt."""

from pathlib import Path

import numpy as np
import pytest

from megatape.data.shards.stored_split import StoredSplit
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.data.training.datasets.document_dataset import DocumentDataset
from megatape.errors import UserError
from megatape.nn.targets import IGNORE_INDEX
from tests.helpers.data.data_directory import Documents, MakeDirectory, write_documents


@pytest.fixture(scope="module")
def letters() -> SentencePieceTokenizer:
    """A tokenizer with a token for each of a, b and =."""
    return SentencePieceTokenizer(train_tokenizer(["ab="], 256 + 3 + 3))


@pytest.mark.parametrize("length", [40, 41, 64, 130])
def test_a_document_is_a_sample(make_directory: MakeDirectory, documents: Documents, length: int) -> None:
    """Documents come in order, across members (64 tokens) and shards (three members), followed by padding only."""
    fitting = [document for document in documents if document.size <= 41]
    dataset = DocumentDataset(StoredSplit(make_directory(fitting), "train"), length)
    assert dataset.num_samples == len(fitting)

    for index, document in enumerate(fitting):
        sample = dataset.sample(index)
        assert sample.tokens.dtype == np.int64
        assert sample.tokens.shape == (length,)
        assert np.array_equal(sample.tokens[: document.size], document[:length])
        assert (sample.tokens[document.size :] == dataset.split.eos_id).all()
        expected = np.full(length, IGNORE_INDEX)
        expected[: document.size - 1] = document[1:]
        assert np.array_equal(sample.targets, expected)


def test_a_document_longer_than_a_sample_is_refused(make_directory: MakeDirectory, documents: Documents) -> None:
    message = r"sequence length is 39, .* the longest of its 200 has 41 tokens: raise data.sequence_len"
    with pytest.raises(ValueError, match=message):
        DocumentDataset(StoredSplit(make_directory(documents), "train"), 39)


def test_only_the_answer_and_the_end_token_are_targets(tmp_path: Path, letters: SentencePieceTokenizer) -> None:
    """The answer begins after the first prompt end; later ones belong to the answer."""
    texts = ["a=b", "abab=", "=a=b"]
    write_documents(tmp_path, texts, letters)
    dataset = DocumentDataset(StoredSplit(tmp_path, "train"), 7, prompt_end="=")

    for index, text in enumerate(texts):
        answer = text.split("=", 1)[1]
        sample = dataset.sample(index)
        learned = sample.targets != IGNORE_INDEX
        assert sample.targets[learned].tolist() == [*letters.encode(answer), letters.eos_id]
        assert np.array_equal(sample.targets[:-1][learned[:-1]], sample.tokens[1:][learned[:-1]])


def test_a_prompt_end_is_one_token(tmp_path: Path, letters: SentencePieceTokenizer) -> None:
    write_documents(tmp_path, ["a=b", "abab=", "=a=b"], letters)
    split = StoredSplit(tmp_path, "train")
    with pytest.raises(ValueError, match="data.prompt_end 'ab' is 2 tokens of the tokenizer"):
        DocumentDataset(split, 7, prompt_end="ab")

    dataset = DocumentDataset(split, 7, prompt_end="b")
    assert np.count_nonzero(dataset.sample(0).targets != IGNORE_INDEX) == 1


@pytest.fixture
def some_without_prompt_end(tmp_path: Path, letters: SentencePieceTokenizer) -> list[str]:
    """Write 48 documents, 3 of them without "=". Some prompts end in the next member."""
    texts = [*["a=b"] * 40, "aaab", "b" * 7, *["ab=a"] * 5, "abba"]
    write_documents(tmp_path, texts, letters)
    return texts


@pytest.mark.usefixtures("some_without_prompt_end")
def test_documents_without_a_prompt_end_are_refused_at_opening(tmp_path: Path) -> None:
    """A document without a prompt end is refused before training, because each resume would fail at the step that draws it."""
    split = StoredSplit(tmp_path, "train")
    message = r"of split train of .* without the data.prompt_end '=': 3, the first is document 40\. "
    with pytest.raises(UserError, match=message):
        DocumentDataset(split, 9, prompt_end="=")
    assert DocumentDataset(split, 9).num_skipped == 0


def test_documents_without_a_prompt_end_are_skipped_on_request(
    tmp_path: Path, letters: SentencePieceTokenizer, some_without_prompt_end: list[str]
) -> None:
    dataset = DocumentDataset(StoredSplit(tmp_path, "train"), 9, prompt_end="=", skip_without_prompt_end=True)
    texts = [text for text in some_without_prompt_end if "=" in text]
    assert dataset.num_samples == len(texts)
    assert dataset.num_skipped == 3

    for index, text in enumerate(texts):
        sample = dataset.sample(index)
        expected = [*letters.begin, *letters.encode(text)]
        assert sample.tokens[: len(expected)].tolist() == expected
        answer = text.split("=")[1]
        assert np.count_nonzero(sample.targets != IGNORE_INDEX) == len(answer) + 1


@pytest.mark.usefixtures("some_without_prompt_end")
def test_skipping_every_document_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="without the data.prompt_end '3': 48, the first is document 0"):
        DocumentDataset(StoredSplit(tmp_path, "train"), 9, prompt_end="3", skip_without_prompt_end=True)
