"""Samples of whole documents or examples: nothing is lost, mixed up, or learned that is not an answer, and little room is left.

Samples are those of earlier versions, so that old runs resume.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megatape.config import parse_config
from megatape.config.batches import BatchSizes
from megatape.data.shards.index import load_index, save_index
from megatape.data.shards.reader import SplitReader
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.shards.table_writer import TableWriter
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.best_fit import pack
from megatape.data.training.best_fit_dataset import BestFitDataset
from megatape.data.training.document_dataset import DocumentDataset
from megatape.data.training.evaluation_reader import EvaluationReader
from megatape.data.training.example_dataset import ExampleDataset
from megatape.data.training.positions import Positions
from megatape.errors import UserError
from megatape.nn.targets import IGNORE_INDEX
from tests.helpers.data.data_directory import EOS, Documents, MakeDirectory, write_documents
from tests.helpers.data.examples import Prepare, examples, in_sample
from tests.helpers.runs.batches import interleaved, make_loader, mixture_of, rows
from tests.helpers.runs.run_data import open_run_data
from tests.helpers.runs.small_run import small_config


def samples_of(lengths: np.ndarray, capacity: int) -> list[list[int]]:
    packing = pack(lengths, capacity)
    spans = packing.order
    sizes = packing.sizes
    return [part.tolist() for part in np.split(spans, np.cumsum(sizes)[:-1])]


def one_by_one(lengths: list[int], capacity: int) -> list[list[int]]:
    """Best fit decreasing as it is defined; of samples with equal room the one that got its last span last is chosen."""
    samples: list[list[int]] = []
    recent: list[int] = []  # samples, the one that got its last span last is the last
    for span in sorted(range(len(lengths)), key=lambda span: -lengths[span]):
        rooms = {sample: capacity - sum(lengths[other] for other in samples[sample]) for sample in recent}
        fitting = [sample for sample in reversed(recent) if rooms[sample] >= lengths[span]]
        best = min(fitting, key=lambda sample: rooms[sample], default=len(samples))
        if best == len(samples):
            samples.append([])
        else:
            recent.remove(best)
        samples[best].append(span)
        recent.append(best)
    return sorted(sorted(sample) for sample in samples)


@pytest.mark.parametrize("capacity", [1, 7, 64, 1000, 100_000])
def test_packing(capacity: int) -> None:
    """Every span once, none beyond the capacity, and little room is left."""
    lengths = np.random.default_rng(capacity).integers(1, capacity + 1, 2000)
    samples = samples_of(lengths, capacity)
    assert sorted(span for sample in samples for span in sample) == list(range(2000))
    assert max(lengths[sample].sum() for sample in samples) <= capacity
    assert len(samples) <= 1.06 * lengths.sum() / capacity + 1
    assert samples == sorted(samples)
    empty = pack(np.empty(0, np.int64), capacity)
    assert (empty.order.size, empty.sizes.size) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_spans_of_one_length_are_placed_as_one_by_one(seed: int) -> None:
    """Many of equal length, and samples of many spans: an order of samples with equal room that differs is found."""
    generator = np.random.default_rng(seed)
    capacity = int(generator.integers(1, 60))
    num_spans = int(generator.integers(1, 150))
    lengths = generator.integers(1, generator.integers(1, capacity + 1) + 1, num_spans)
    assert samples_of(lengths, capacity) == one_by_one(lengths.tolist(), capacity)


LENGTH = 24


@pytest.mark.parametrize("length", [40, 41, 64, 130])
def test_a_document_is_a_sample(make_directory: MakeDirectory, documents: Documents, length: int) -> None:
    """Every document in order, across members (64 tokens) and shards (three members), followed by padding only."""
    whole = [document for document in documents if document.size <= 41]
    dataset = DocumentDataset(StoredSplit(make_directory(whole), "train"), length)
    assert dataset.num_samples == len(whole)
    for index, document in enumerate(whole):
        sample = dataset.sample(index)
        assert (sample.tokens.dtype, sample.tokens.shape) == (np.int64, (length,))
        assert np.array_equal(sample.tokens[: document.size], document[:length])
        assert (sample.tokens[document.size :] == dataset.split.eos_id).all()
        expected = np.full(length, IGNORE_INDEX)
        expected[: document.size - 1] = document[1:]
        assert np.array_equal(sample.targets, expected)


def test_a_document_longer_than_a_sample(make_directory: MakeDirectory, documents: Documents) -> None:
    with pytest.raises(
        ValueError, match=r"sequence length is 39, .* the longest of its 200 has 41 tokens: raise data.sequence_len"
    ):
        DocumentDataset(StoredSplit(make_directory(documents), "train"), 39)


def test_targets_after_a_prompt(tmp_path: Path) -> None:
    """Only the tokens after the first prompt end are targets: the answer and the end token."""
    tokenizer = SentencePieceTokenizer(train_tokenizer(["ab="], 256 + 3 + 3))
    texts = ["a=b", "abab=", "=a=b"]
    write_documents(tmp_path, texts, tokenizer)
    dataset = DocumentDataset(StoredSplit(tmp_path, "train"), 7, prompt_end="=")
    answers = [[*tokenizer.encode(text.split("=", 1)[1]), tokenizer.eos_id] for text in texts]
    for index, answer in enumerate(answers):
        sample = dataset.sample(index)
        wanted = sample.targets != IGNORE_INDEX
        assert sample.targets[wanted].tolist() == answer
        assert np.array_equal(sample.targets[:-1][wanted[:-1]], sample.tokens[1:][wanted[:-1]])
    with pytest.raises(ValueError, match="data.prompt_end 'ab' is 2 tokens of the tokenizer"):
        DocumentDataset(StoredSplit(tmp_path, "train"), 7, prompt_end="ab")
    other = DocumentDataset(StoredSplit(tmp_path, "train"), 7, prompt_end="b")
    assert (other.sample(0).targets != IGNORE_INDEX).sum() == 1


def test_documents_without_a_prompt_end_are_found_at_opening(tmp_path: Path) -> None:
    """Otherwise each resume would fail at the step that draws such a document. Prompts may end in the next member."""
    tokenizer = SentencePieceTokenizer(train_tokenizer(["ab="], 256 + 3 + 3))
    texts = [*["a=b"] * 40, "aaab", "b" * 7, *["ab=a"] * 5, "abba"]
    write_documents(tmp_path, texts, tokenizer)
    with pytest.raises(
        UserError, match=r"of split train of .* without the data.prompt_end '=': 3, the first is document 40\. "
    ):
        DocumentDataset(StoredSplit(tmp_path, "train"), 9, prompt_end="=")
    dataset = DocumentDataset(StoredSplit(tmp_path, "train"), 9, prompt_end="=", skip_without_prompt_end=True)
    kept = [text for text in texts if "=" in text]
    assert (dataset.num_samples, dataset.num_skipped) == (len(kept), 3)
    for index, text in enumerate(kept):
        expected = [*tokenizer.begin, *tokenizer.encode(text)]
        assert dataset.sample(index).tokens[: len(expected)].tolist() == expected
        assert (dataset.sample(index).targets != IGNORE_INDEX).sum() == len(text.split("=")[1]) + 1
    assert DocumentDataset(StoredSplit(tmp_path, "train"), 9).num_skipped == 0
    with pytest.raises(UserError, match="without the data.prompt_end '3': 48, the first is document 0"):
        DocumentDataset(StoredSplit(tmp_path, "train"), 9, prompt_end="3", skip_without_prompt_end=True)


def pieces(dataset: BestFitDataset, index: int) -> list[tuple[int, ...]]:
    """The documents in a sample, or parts of them, from the tokens and targets that belong together."""
    sample = dataset.sample(index)
    assert sample.document_starts is not None
    real = sample.targets != IGNORE_INDEX
    assert (sample.tokens[~real] == EOS).all(), "padding comes last"
    assert not (np.diff(real.astype(int)) == 1).any(), "padding comes last"
    found = []
    for start in np.unique(sample.document_starts[real]):
        own = np.flatnonzero((sample.document_starts == start) & real)
        assert own[0] == start
        assert (np.diff(own) == 1).all()
        found.append((*sample.tokens[own].tolist(), int(sample.targets[own[-1]])))
        assert np.array_equal(sample.targets[own], found[-1][1:])
    return found


def parts_of(documents: Documents, shard: int) -> Iterator[tuple[int, list[int]]]:
    """The documents of a split whose shards have `shard` tokens, cut where shards meet, with their shards."""
    start = 0
    for document in documents:
        for begin in range(start // shard * shard, start + len(document), shard):
            first = max(begin, start)
            end = min(begin + shard, start + len(document))
            yield begin // shard, document[first - start : end - start].tolist()
        start += len(document)


def cut(ids: list[int]) -> list[tuple[int, ...]]:
    """What must be found of a document."""
    return [tuple(ids[begin : begin + LENGTH + 1]) for begin in range(0, len(ids) - 1, LENGTH)]


@pytest.mark.parametrize("tables", [True, False], ids=["tables", "read"])
def test_every_document_is_in_an_epoch_once(
    make_directory: MakeDirectory,
    documents: Documents,
    tables: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whole if it fits, in as few pieces as possible otherwise; some have an end alone, which is learned nowhere.

    In windows a sample has documents of one shard, and the same samples come."""
    documents = [*documents, np.array([EOS])]
    directory = make_directory(documents)
    if tables:
        add_tables(directory, documents)
        monkeypatch.setattr(SplitReader, "members", None)
    dataset, windows = (BestFitDataset(StoredSplit(directory, "train"), LENGTH, window=window) for window in (0, 1))
    monkeypatch.undo()
    found = Counter(piece for index in range(dataset.num_samples) for piece in pieces(dataset, index))
    shard = load_index(directory).splits["train"].shards[0].tokens
    parts = list(parts_of(documents, shard))
    assert found == Counter(piece for _, ids in parts for piece in cut(ids))
    places = sum(len(ids) - 1 for _, ids in parts)
    assert dataset.filled == pytest.approx(places / (dataset.num_samples * LENGTH))
    assert dataset.num_samples <= places / LENGTH * 1.03 + 1 + parts[-1][0]
    assert windows.num_samples == dataset.num_samples
    shards = {piece: number for number, ids in parts for piece in cut(ids) if found[piece] == 1}
    order = []
    mixture = mixture_of(windows)
    for place in range(windows.num_samples):
        index = mixture.order.locate(place).sample_index
        assert np.array_equal(mixture.sample(place).tokens, dataset.sample(index).tokens)
        order += [shards[piece] for piece in pieces(dataset, index) if piece in shards]
    assert len([number for number, _ in groupby(order)]) == len(set(order)) == parts[-1][0] + 1, "one shard after the other"


def test_tables_that_do_not_fit(make_directory: MakeDirectory, documents: Documents) -> None:
    directory = make_directory(documents)
    add_tables(directory, documents[:-1])
    with pytest.raises(ValueError, match=r"the documents in the tables of train have 4,\d+ tokens, its members 4,\d+: prepare"):
        BestFitDataset(StoredSplit(directory, "train"), LENGTH)


def test_batches_mask_documents(make_directory: MakeDirectory, documents: Documents) -> None:
    """Positions restart with each document, and every data-parallel size sees the same."""
    dataset = BestFitDataset(StoredSplit(make_directory(documents), "train"), LENGTH)
    whole = make_loader(dataset).step(16)
    ranks = [make_loader(dataset, rank, world_size=2).step(16) for rank in range(2)]
    for ours, theirs in zip(interleaved(ranks), whole, strict=True):
        assert ours.tokens.equal(theirs.tokens)
        assert ours.targets.equal(theirs.targets)
        assert ours.document_starts is not None
        assert (ours.position_ids + ours.document_starts).equal(torch.arange(LENGTH).expand_as(ours.tokens))


def add_tables(directory: Path, documents: Documents) -> None:
    index = load_index(directory)
    for split in ("train", "validation"):
        writer = TableWriter(directory, split)
        for ids in documents:
            writer.add(tokens=[len(ids)], text_bytes=[3 * len(ids)], places=["here"], urls=[""], hashes=[7], scores=[{}])
        index.document_tables[split] = writer.close()
    save_index(index, directory)


EXAMPLE_LENGTH = 100
CHATS = [
    {
        "messages": [
            {"role": role, "content": f"{'ab ' * (number % 5)}{turn}{number}"}
            for turn in range(1 + number % 3)
            for role in ("user", "assistant")
        ]
    }
    for number in range(60)
]


@pytest.fixture
def directory(prepare: Prepare) -> Path:
    """60 conversations of one to three exchanges, between 10 tokens and as many as fit."""
    return prepare("chat", CHATS, sequence_length=EXAMPLE_LENGTH)[0]


@pytest.mark.parametrize("packed", [False, True])
def test_every_example_is_in_one_sample(directory: Path, packed: bool) -> None:
    """Token by token: examples follow one another in a sample, and padding ends it."""
    expected = sorted(examples(directory, EXAMPLE_LENGTH))
    assert sum(target >= 0 for _, targets in expected for target in targets) > 400
    dataset = ExampleDataset(StoredSplit(directory, "train"), EXAMPLE_LENGTH, pack_examples=packed)
    found = []
    for index in range(dataset.num_samples):
        sample = dataset.sample(index)
        assert (sample.document_starts is not None) == packed
        starts = [0]
        if sample.document_starts is not None:
            starts = np.unique(sample.document_starts).tolist()
            starts = starts[: -1 if (sample.targets[starts[-1] :] == IGNORE_INDEX).all() else None]
            assert starts[0] == 0
        found += in_sample(sample, starts, dataset.split.eos_id)
    assert sorted(found) == expected
    assert dataset.filled == pytest.approx(sum(len(tokens) for tokens, _ in found) / (dataset.num_samples * EXAMPLE_LENGTH))
    assert dataset.num_samples == 60 if not packed else dataset.num_samples < 45
    for index in (-1, dataset.num_samples):
        with pytest.raises(IndexError):
            dataset.sample(index)


def test_the_unigram_entropy_is_that_of_the_targets(directory: Path) -> None:
    targets = [target for _, found in examples(directory, EXAMPLE_LENGTH) for target in found if target >= 0]
    share = np.bincount(targets) / len(targets)
    share = share[share > 0]
    assert ExampleDataset(StoredSplit(directory, "train"), EXAMPLE_LENGTH).unigram_entropy == pytest.approx(
        -(share * np.log(share)).sum()
    )


def test_packed_examples_do_not_see_each_other(directory: Path) -> None:
    """Positions begin anew with each example, in training and in evaluation, and masks cost no target."""
    dataset = ExampleDataset(StoredSplit(directory, "train"), EXAMPLE_LENGTH, pack_examples=True)
    (trained,) = make_loader(dataset, micro_batch_size=8, positions=Positions(max_offset=9)).step(0)
    _, evaluated = next(EvaluationReader(8).batches(dataset, {"": range(8)}))
    for batch in (trained, evaluated):
        assert batch.document_starts is not None
        assert sum(len(row.unique()) for row in batch.document_starts) > 12
        offsets = batch.position_ids - (torch.arange(EXAMPLE_LENGTH) - batch.document_starts)
        assert (offsets == offsets[:, :1]).all()
    for row in range(8):
        sample = dataset.sample(row)
        assert torch.equal(evaluated.document_starts[row], torch.as_tensor(sample.document_starts))
        assert torch.equal(evaluated.targets[row], torch.from_numpy(sample.targets))


@pytest.mark.parametrize("packed", [False, True])
def test_the_same_samples_on_any_ranks(directory: Path, packed: bool) -> None:
    """Every step has the same samples in the same order on 1, 2 and 4 ranks, and an epoch has each of them once."""
    dataset = ExampleDataset(StoredSplit(directory, "train"), EXAMPLE_LENGTH, pack_examples=packed)

    def step(consumed: int, world_size: int, batch_size: int = 8) -> list[tuple[Any, ...]]:
        sizes: dict[str, Any] = {"batches": BatchSizes(batch_size), "micro_batch_size": 1 if batch_size == 1 else 2}
        ranks = [make_loader(dataset, rank, world_size, **sizes).step(consumed) for rank in range(world_size)]
        return [(tokens, targets) for tokens, targets, _ in rows(interleaved(ranks))]

    for consumed in (0, 5 * dataset.num_samples - 3):
        assert step(consumed, 2) == step(consumed, 4) == step(consumed, 1)
    epoch = [step(place, 1, 1)[0] for place in range(dataset.num_samples)]
    stored = [dataset.sample(index) for index in range(dataset.num_samples)]
    assert sorted(epoch) == sorted((tuple(sample.tokens.tolist()), tuple(sample.targets.tolist())) for sample in stored)
    assert epoch != [step(dataset.num_samples + place, 1, 1)[0] for place in range(dataset.num_samples)]


def test_the_fingerprint_is_that_of_tokens_and_answers(prepare: Prepare) -> None:
    """The same tokens with another division into prompt and answer are other data."""
    records = [[{"prompt": "a", "answer": "b c"}], [{"prompt": "ab", "answer": " c"}]]
    one, other = (prepare("pairs", given, name=name)[0] for name, given in zip("xy", records, strict=True))
    same = prepare("pairs", records[0], name="z")[0]
    datasets = [ExampleDataset(StoredSplit(directory, "train"), 64) for directory in (one, other, same)]
    assert datasets[0].sample(0).tokens.tolist() == datasets[1].sample(0).tokens.tolist()
    assert datasets[0].fingerprint != datasets[1].fingerprint
    assert datasets[0].fingerprint == datasets[2].fingerprint


def edit_answers(directory: Path, edit: Callable[[np.ndarray], None], hashed: bool) -> None:
    """Change the training split's answers, and their hash in the index if the file shall look right."""
    from hashlib import sha256

    path = directory / "train-answers.npy"
    index = directory / "index.json"
    answers = np.load(path)
    edit(answers)
    np.save(path, answers)
    if hashed:
        content = json.loads(index.read_text())
        content["answers"]["train"]["sha256"] = sha256(path.read_bytes()).hexdigest()
        index.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("edit", "hashed", "message"),
    [
        (lambda answers: answers.__setitem__((3, 1), answers[3, 1] + 1), False, "train-answers.npy: corrupted, sha256 is"),
        (lambda answers: answers.__setitem__((-1, 2), 10**6), True, "train-answers.npy: its answers do not fit the"),
        (lambda answers: answers.__setitem__((0, 1), 0), True, "do not fit"),
        (lambda answers: answers.__setitem__((3, 1), answers[2, 2] - 1), True, "do not fit"),
        (lambda answers: answers.__setitem__((slice(5, None), 0), answers[5:, 0] + 1), True, "do not fit"),
    ],
)
def test_corrupted_answers(directory: Path, edit: Callable[[np.ndarray], None], hashed: bool, message: str) -> None:
    edit_answers(directory, edit, hashed)
    with pytest.raises(ValueError, match=message):
        ExampleDataset(StoredSplit(directory, "train"), EXAMPLE_LENGTH)
    (directory / "train-answers.npy").unlink()
    with pytest.raises(FileNotFoundError, match="train-answers.npy: not found, the index lists it"):
        ExampleDataset(StoredSplit(directory, "train"), EXAMPLE_LENGTH)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": "packed"}, "holds prompts and answers, but data.samples is packed, .* set it to examples"),
        ({"samples": "documents"}, "holds prompts and answers, but data.samples is documents|a document of split"),
        ({"sequence_length": 16}, "sequence length is 16, .* the longest has \\d+: raise data.sequence_length"),
        ({"path": "CORPUS"}, "split train of .* has no prompts and answers, which data.samples examples needs"),
    ],
)
def test_data_that_does_not_fit(directory: Path, data_directory: Path, changes: dict[str, Any], message: str) -> None:
    raw = small_config(directory, directory.parent / "run")
    raw["model"] |= {"max_positions": EXAMPLE_LENGTH, "vocab_size": 320}
    raw["data"] |= {"samples": "examples", "sequence_length": EXAMPLE_LENGTH} | changes
    if changes.get("path"):
        raw["data"]["path"] = str(data_directory)
    with pytest.raises(ValueError, match=message):
        open_run_data(parse_config(raw, "test"))


def test_opened_as_configured(directory: Path, tokenizer: Tokenizer) -> None:
    raw = small_config(directory, directory.parent / "run")
    raw["model"] |= {"max_positions": EXAMPLE_LENGTH, "vocab_size": 320}
    found = []
    for mask_documents in (False, True):
        raw["data"] |= {"samples": "examples", "sequence_length": EXAMPLE_LENGTH, "mask_documents": mask_documents}
        data = open_run_data(parse_config(raw, "test"))
        assert data.tokenizer.sha256 == tokenizer.sha256
        found.append(data.train.corpora[""].num_samples)
    assert found[0] == 60 > found[1]
