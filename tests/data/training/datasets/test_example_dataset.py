"""Samples of examples, packed or one each: only answers are learned, and examples do not see each other."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megatape.config import parse_config
from megatape.config.sections.batches import BatchSizes
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.batches.evaluation_reader import EvaluationReader
from megatape.data.training.batches.positions import Positions
from megatape.data.training.datasets.example_dataset import ExampleDataset
from megatape.nn.targets import IGNORE_INDEX
from tests.helpers.data.examples import Prepare, examples, in_sample
from tests.helpers.runs.batches import interleaved, make_loader, rows
from tests.helpers.runs.run_data import open_run_data
from tests.helpers.runs.small_run import small_config

LENGTH = 100
NUM_CHATS = 60


def make_chat(number: int) -> dict[str, Any]:
    """Return a conversation of one to three exchanges."""
    messages = []
    padding = "ab " * (number % 5)
    for turn in range(1 + number % 3):
        for role in ("user", "assistant"):
            messages.append({"role": role, "content": f"{padding}{turn}{number}"})
    return {"messages": messages}


@pytest.fixture
def directory(prepare: Prepare) -> Path:
    """A data directory of 60 conversations, from 10 tokens to as many as fit."""
    chats = [make_chat(number) for number in range(NUM_CHATS)]
    path, _ = prepare("chat", chats, sequence_length=LENGTH)
    return path


def open_examples(directory: Path, packed: bool = False) -> ExampleDataset:
    return ExampleDataset(StoredSplit(directory, "train"), LENGTH, pack_examples=packed)


@pytest.mark.parametrize("packed", [False, True])
def test_every_example_is_in_one_sample(directory: Path, packed: bool) -> None:
    """Compares token by token. Examples follow one another in a sample, and padding ends it."""
    expected = sorted(examples(directory, LENGTH))
    num_targets = sum(np.count_nonzero(np.array(targets) >= 0) for _, targets in expected)
    assert num_targets > 400

    dataset = open_examples(directory, packed)
    in_samples = []
    for index in range(dataset.num_samples):
        sample = dataset.sample(index)
        starts = [0]
        if packed:
            assert sample.document_starts is not None
            starts = np.unique(sample.document_starts).tolist()
            ends_in_padding = (sample.targets[starts[-1] :] == IGNORE_INDEX).all()
            if ends_in_padding:
                starts.pop()
            assert starts[0] == 0
        else:
            assert sample.document_starts is None
        in_samples += in_sample(sample, starts, dataset.split.eos_id)

    assert sorted(in_samples) == expected
    num_tokens = sum(len(tokens) for tokens, _ in in_samples)
    assert dataset.filled == pytest.approx(num_tokens / (dataset.num_samples * LENGTH))
    if packed:
        assert dataset.num_samples < 45
    else:
        assert dataset.num_samples == NUM_CHATS


@pytest.mark.parametrize("packed", [False, True])
def test_a_sample_out_of_range_is_refused(directory: Path, packed: bool) -> None:
    dataset = open_examples(directory, packed)
    for index in (-1, dataset.num_samples):
        with pytest.raises(IndexError):
            dataset.sample(index)


def test_the_unigram_entropy_is_that_of_the_targets(directory: Path) -> None:
    learned: list[int] = []
    for _, targets in examples(directory, LENGTH):
        learned += [target for target in targets if target >= 0]
    share = np.bincount(learned) / len(learned)
    share = share[share > 0]
    expected = -(share * np.log(share)).sum()
    assert open_examples(directory).unigram_entropy == pytest.approx(expected)


def test_packed_examples_do_not_see_each_other(directory: Path) -> None:
    """Positions start again with each example, in training and in evaluation."""
    dataset = open_examples(directory, packed=True)
    (trained,) = make_loader(dataset, micro_batch_size=8, positions=Positions(max_offset=9)).step(0)
    _, evaluated = next(EvaluationReader(8).batches(dataset, {"": range(8)}))
    for batch in (trained, evaluated):
        assert batch.document_starts is not None
        assert sum(len(row.unique()) for row in batch.document_starts) > 12
        offsets = batch.position_ids - (torch.arange(LENGTH) - batch.document_starts)
        assert torch.equal(offsets, offsets[:, :1].expand_as(offsets))


def test_masks_cost_no_target(directory: Path) -> None:
    dataset = open_examples(directory, packed=True)
    _, batch = next(EvaluationReader(8).batches(dataset, {"": range(8)}))
    assert batch.document_starts is not None
    for row in range(8):
        sample = dataset.sample(row)
        assert torch.equal(batch.document_starts[row], torch.as_tensor(sample.document_starts))
        assert torch.equal(batch.targets[row], torch.from_numpy(sample.targets))


def samples_of_step(
    dataset: ExampleDataset, consumed: int, world_size: int = 1, batch_size: int = 8
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return tokens and targets of the samples of a step, in the order of the samples."""
    sizes: dict[str, Any] = {"batches": BatchSizes(batch_size), "micro_batch_size": min(batch_size, 2)}
    ranks = [make_loader(dataset, rank, world_size, **sizes).step(consumed) for rank in range(world_size)]
    return [(tokens, targets) for tokens, targets, _ in rows(interleaved(ranks))]


@pytest.mark.parametrize("packed", [False, True])
def test_every_step_has_the_same_samples_on_any_ranks(directory: Path, packed: bool) -> None:
    dataset = open_examples(directory, packed)
    for consumed in (0, 5 * dataset.num_samples - 3):
        expected = samples_of_step(dataset, consumed, world_size=1)
        assert samples_of_step(dataset, consumed, world_size=2) == expected
        assert samples_of_step(dataset, consumed, world_size=4) == expected


@pytest.mark.parametrize("packed", [False, True])
def test_an_epoch_has_every_sample_once(directory: Path, packed: bool) -> None:
    dataset = open_examples(directory, packed)
    size = dataset.num_samples
    first_epoch = [samples_of_step(dataset, consumed, batch_size=1)[0] for consumed in range(size)]
    second_epoch = [samples_of_step(dataset, consumed, batch_size=1)[0] for consumed in range(size, 2 * size)]

    stored = []
    for index in range(size):
        sample = dataset.sample(index)
        stored.append((tuple(sample.tokens.tolist()), tuple(sample.targets.tolist())))
    assert sorted(first_epoch) == sorted(stored)
    assert first_epoch != second_epoch


def test_the_fingerprint_depends_on_tokens_and_answers(prepare: Prepare) -> None:
    """The same tokens split elsewhere into prompt and answer are other data."""

    def prepare_pair(name: str, prompt: str, answer: str) -> ExampleDataset:
        path, _ = prepare("pairs", [{"prompt": prompt, "answer": answer}], name=name)
        return ExampleDataset(StoredSplit(path, "train"), 64)

    dataset = prepare_pair("x", "a", "b c")
    split_elsewhere = prepare_pair("y", "ab", " c")
    equal = prepare_pair("z", "a", "b c")
    assert dataset.sample(0).tokens.tolist() == split_elsewhere.sample(0).tokens.tolist()
    assert dataset.fingerprint != split_elsewhere.fingerprint
    assert dataset.fingerprint == equal.fingerprint


def edit_answers(directory: Path, edit: Callable[[np.ndarray], None], signed: bool) -> None:
    """Change the answers of the training split, and their hash in the index if `signed`."""
    path = directory / "train-answers.npy"
    answers = np.load(path)
    edit(answers)
    np.save(path, answers)
    if signed:
        index = directory / "index.json"
        content = json.loads(index.read_text())
        content["answers"]["train"]["sha256"] = sha256(path.read_bytes()).hexdigest()
        index.write_text(json.dumps(content))


def shift_one_answer(answers: np.ndarray) -> None:
    answers[3, 1] += 1


def end_beyond_the_split(answers: np.ndarray) -> None:
    answers[-1, 2] = 10**6


def begin_before_the_prompt(answers: np.ndarray) -> None:
    answers[0, 1] = 0


def overlap_the_answer_before(answers: np.ndarray) -> None:
    answers[3, 1] = answers[2, 2] - 1


def skip_an_example(answers: np.ndarray) -> None:
    answers[5:, 0] += 1


@pytest.mark.parametrize(
    ("edit", "signed", "message"),
    [
        (shift_one_answer, False, "train-answers.npy: corrupted, sha256 is"),
        (end_beyond_the_split, True, "train-answers.npy: its answers do not fit the"),
        (begin_before_the_prompt, True, "do not fit"),
        (overlap_the_answer_before, True, "do not fit"),
        (skip_an_example, True, "do not fit"),
    ],
)
def test_corrupted_answers_are_refused(directory: Path, edit: Callable[[np.ndarray], None], signed: bool, message: str) -> None:
    edit_answers(directory, edit, signed)
    with pytest.raises(ValueError, match=message):
        open_examples(directory)


def test_missing_answers_are_refused(directory: Path) -> None:
    (directory / "train-answers.npy").unlink()
    with pytest.raises(FileNotFoundError, match="train-answers.npy: not found, the index lists it"):
        open_examples(directory)


def example_config(directory: Path, **data: Any) -> dict[str, Any]:
    """Return a configuration that trains on examples, with changes to its data section."""
    raw = small_config(directory, directory.parent / "run")
    raw["model"] |= {"max_positions": LENGTH, "vocab_size": 320}
    raw["data"] |= {"samples": "examples", "sequence_length": LENGTH, **data}
    return raw


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": "packed"}, "holds prompts and answers, but data.samples is packed, .* set it to examples"),
        ({"samples": "documents"}, "holds prompts and answers, but data.samples is documents|a document of split"),
        ({"sequence_length": 16}, "sequence length is 16, .* the longest has \\d+: raise data.sequence_length"),
    ],
)
def test_settings_that_do_not_fit_examples_are_refused(directory: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_run_data(parse_config(example_config(directory, **changes), "test"))


def test_a_corpus_without_answers_is_refused(directory: Path, data_directory: Path) -> None:
    raw = example_config(directory, path=str(data_directory))
    with pytest.raises(ValueError, match="split train of .* has no prompts and answers, which data.samples examples needs"):
        open_run_data(parse_config(raw, "test"))


def test_masking_documents_packs_examples(directory: Path, tokenizer: Tokenizer) -> None:
    num_samples = {}
    for mask_documents in (False, True):
        data = open_run_data(parse_config(example_config(directory, mask_documents=mask_documents), "test"))
        assert data.tokenizer.sha256 == tokenizer.sha256
        num_samples[mask_documents] = data.train.corpora[""].num_samples
    assert num_samples[False] == NUM_CHATS
    assert num_samples[True] < NUM_CHATS
