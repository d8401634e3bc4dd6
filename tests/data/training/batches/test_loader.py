"""Batches of training and evaluation: the same samples on any number of ranks, with targets, masks and positions."""

from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.config.sections.batches import BatchSizes
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.batches.batch import Batch
from megatape.data.training.batches.evaluation_reader import EvaluationReader
from megatape.data.training.batches.positions import Positions
from megatape.data.training.datasets.dataset import Dataset
from megatape.data.training.datasets.document_dataset import DocumentDataset
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.data.training.selection import SampleGroups
from megatape.nn.targets import IGNORE_INDEX
from tests.helpers.data.data_directory import Documents, MakeDirectory
from tests.helpers.runs.batches import interleaved, make_loader, rows

LENGTH = 16


@pytest.fixture
def dataset(make_directory: MakeDirectory, documents: Documents) -> TokenDataset:
    return TokenDataset(StoredSplit(make_directory(documents), "train"), LENGTH)


@pytest.fixture
def masked(dataset: TokenDataset, tmp_path: Path) -> TokenDataset:
    """Data set of the same data, with document masks."""
    return TokenDataset(StoredSplit(tmp_path / "data", "train"), LENGTH, mask_documents=True)


def step_of_ranks(dataset: Dataset, consumed: int, world_size: int, **options: Any) -> list[list[Batch]]:
    """Return the batches of a step on each rank."""
    return [make_loader(dataset, rank, world_size, **options).step(consumed) for rank in range(world_size)]


def one_sample_steps(dataset: Dataset, first: int, last: int) -> list[Batch]:
    """Return batches of one sample each, for a range of consumed samples."""
    loader = make_loader(dataset, batches=BatchSizes(1), micro_batch_size=1)
    return [loader.step(consumed)[0] for consumed in range(first, last)]


def test_targets_are_the_next_tokens(dataset: TokenDataset) -> None:
    batches = make_loader(dataset).step(0)
    assert [batch.tokens.shape for batch in batches] == [(2, LENGTH)] * 4
    for batch in batches:
        assert batch.document_starts is None
        for tensor in (batch.tokens, batch.targets, batch.position_ids):
            assert tensor.dtype == torch.int64
        assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
        assert torch.equal(batch.position_ids, torch.arange(LENGTH).expand(2, -1))


def test_an_epoch_uses_every_sample_once(dataset: TokenDataset) -> None:
    size = dataset.num_samples
    expected = sorted(tuple(dataset.sample(index).tokens.tolist()) for index in range(size))
    epochs = []
    for epoch in (0, 1):
        batches = one_sample_steps(dataset, epoch * size, (epoch + 1) * size)
        epochs.append([tuple(batch.tokens[0].tolist()) for batch in batches])
    assert sorted(epochs[0]) == expected
    assert sorted(epochs[1]) == expected
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(
    ("mask_documents", "positions"),
    [(False, Positions()), (True, Positions(max_offset=1000)), (False, Positions(drawn_from=50))],
    ids=["plain", "offset", "drawn"],
)
def test_every_data_parallel_size_sees_the_same_global_sequence(
    dataset: TokenDataset, masked: TokenDataset, mask_documents: bool, positions: Positions
) -> None:
    if mask_documents:
        dataset = masked
    for consumed in (0, 8, 5 * dataset.num_samples - 3):
        expected = rows(make_loader(dataset, positions=positions).step(consumed))
        assert len(set(expected)) > 6  # The third step spans the end of an epoch.
        for world_size in (2, 4):
            ranks = step_of_ranks(dataset, consumed, world_size, positions=positions)
            assert [len(batches) for batches in ranks] == [4 // world_size] * world_size
            assert rows(interleaved(ranks)) == expected


def test_the_micro_batch_size_does_not_change_the_samples(dataset: TokenDataset) -> None:
    large = make_loader(dataset, micro_batch_size=8).step(16)
    small = make_loader(dataset, micro_batch_size=1).step(16)
    assert rows(large) == rows(small)


def test_steps_depend_on_the_seed(dataset: TokenDataset) -> None:
    assert rows(make_loader(dataset).step(0)) != rows(make_loader(dataset, seed=4).step(0))


def test_equal_positions_are_one_row_in_memory(dataset: TokenDataset, masked: TokenDataset) -> None:
    """An encoding (fire) recognizes equal positions by their stride, without reading values, also in a copy on a device."""
    for data, equal_positions in ((dataset, True), (masked, False)):
        batch = make_loader(data).step(0)[0]
        copy = batch.mapped(torch.clone)
        assert (batch.position_ids.stride(0) == 0) == equal_positions
        assert (copy.position_ids.stride(0) == 0) == equal_positions
        assert torch.equal(copy.position_ids, batch.position_ids)
        assert torch.equal(copy.tokens, batch.tokens)


def check_masked_sample(batch: Batch, row: int, eos_id: int) -> None:
    """Compare a sample with the definition of document masks, token by token."""
    assert batch.document_starts is not None
    tokens = batch.tokens[row].tolist()
    targets = batch.targets[row].tolist()
    positions = batch.position_ids[row].tolist()
    document_starts = batch.document_starts[row].tolist()
    start = 0
    for index, token in enumerate(tokens):
        assert document_starts[index] == start
        assert positions[index] - positions[0] == index - start
        if token == eos_id:
            assert targets[index] == IGNORE_INDEX
            start = index + 1
        elif index + 1 < LENGTH:
            assert targets[index] == tokens[index + 1]
        else:
            assert targets[index] != IGNORE_INDEX


def test_document_masks_follow_their_definition(masked: TokenDataset) -> None:
    for batch in make_loader(masked, positions=Positions(max_offset=9)).step(0):
        for row in range(len(batch.tokens)):
            check_masked_sample(batch, row, masked.split.eos_id)


def test_document_masks_leave_the_tokens_alone(dataset: TokenDataset, masked: TokenDataset) -> None:
    plain = make_loader(dataset).step(0)
    changed = make_loader(masked).step(0)
    for plain_batch, masked_batch in zip(plain, changed, strict=True):
        assert torch.equal(masked_batch.tokens, plain_batch.tokens)
    assert any((batch.targets == IGNORE_INDEX).any() for batch in changed)


@pytest.mark.parametrize(
    "options",
    [
        {"batches": BatchSizes(10), "micro_batch_size": 4},
        {"world_size": 3},
        {"micro_batch_size": 0},
        {"rank": 4, "world_size": 4},
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_fail_an_assertion(dataset: TokenDataset, options: dict[str, Any]) -> None:
    """Users get a message from Config.check_divides before a loader is created."""
    with pytest.raises(AssertionError):
        make_loader(dataset, **options)


def test_a_negative_number_of_consumed_samples_fails_an_assertion(dataset: TokenDataset) -> None:
    with pytest.raises(AssertionError):
        make_loader(dataset).step(-1)


@pytest.mark.parametrize("groups", [{"": [5]}, {"": range(13)}, {"a": range(4), "b": [7, 9, 20], "c": [30]}], ids=str)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_evaluation_covers_the_samples_once_with_equal_batch_counts(
    dataset: TokenDataset, groups: SampleGroups, world_size: int
) -> None:
    """All samples of a batch belong to one group, and padding has no targets."""
    ranks = [list(EvaluationReader(3, rank, world_size).batches(dataset, groups)) for rank in range(world_size)]
    num_batches = sum(-(-len(samples) // 3) for samples in groups.values())
    assert [len(batches) for batches in ranks] == [-(-num_batches // world_size)] * world_size

    targets: dict[str, list[list[int]]] = {name: [] for name in groups}
    for step in zip(*ranks, strict=True):
        for name, batch in step:
            assert batch.tokens.shape == (3, LENGTH)
            targets[name] += [row for row in batch.targets.tolist() if set(row) != {IGNORE_INDEX}]
    for name, samples in groups.items():
        assert targets[name] == [dataset.sample(index).targets.tolist() for index in samples]


def test_evaluation_masks_documents(masked: TokenDataset) -> None:
    _, batch = next(EvaluationReader(8).batches(masked, {"": range(8)}))
    assert batch.document_starts is not None
    assert (batch.targets[batch.tokens == masked.split.eos_id] == IGNORE_INDEX).all()
    assert torch.equal(batch.position_ids + batch.document_starts, torch.arange(LENGTH).expand(8, -1))


def test_drawn_positions_restart_at_documents(masked: TokenDataset) -> None:
    """The k-th token of every document has the k-th of the sample's drawn positions."""
    positions = Positions(drawn_from=50)
    samples = rows(make_loader(masked, positions=positions).step(0))
    for consumed, (tokens, _, position_ids) in enumerate(samples):
        draw = positions.training(LENGTH, 3, consumed).tolist()
        index = 0
        for token, position in zip(tokens, position_ids, strict=True):
            assert position == draw[index]
            index += 1
            if token == masked.split.eos_id:
                index = 0


def test_evaluation_uses_one_draw(dataset: TokenDataset) -> None:
    positions = Positions(drawn_from=50)
    for seed in (1, 2):
        expected = torch.from_numpy(positions.evaluation(LENGTH, seed)).expand(3, -1)
        reader = EvaluationReader(3, positions=positions, seed=seed)
        for _, batch in reader.batches(dataset, {"": range(13)}):
            assert torch.equal(batch.position_ids, expected)


@pytest.fixture
def document_dataset(make_directory: MakeDirectory, documents: Documents) -> DocumentDataset:
    """One document per sample."""
    return DocumentDataset(StoredSplit(make_directory(documents), "train"), 48)


def test_documents_as_samples_are_the_same_on_any_ranks(document_dataset: DocumentDataset) -> None:
    positions = Positions(max_offset=1000)
    for consumed in (0, 5 * document_dataset.num_samples - 3):
        expected = rows(make_loader(document_dataset, positions=positions).step(consumed))
        for world_size in (2, 4):
            ranks = step_of_ranks(document_dataset, consumed, world_size, positions=positions)
            assert rows(interleaved(ranks)) == expected


def test_every_document_occurs_once_per_epoch(document_dataset: DocumentDataset, documents: Documents) -> None:
    """The end of a document is its last target."""
    epoch = one_sample_steps(document_dataset, 0, document_dataset.num_samples)
    targets = []
    for batch in epoch:
        assert batch.document_starts is None
        targets.append(batch.targets[batch.targets != IGNORE_INDEX].tolist())
    assert sorted(targets) == sorted(document[1:].tolist() for document in documents)


def check_shorter(batch: Batch, full: Batch, length: int) -> None:
    """Check that a batch of shorter sequences has the tokens and targets of the full batch.

    Each sequence has its own positions and dropout, and sees no document that begins before it.
    """
    assert torch.equal(batch.tokens.flatten(), full.tokens.flatten())
    assert torch.equal(batch.targets.flatten(), full.targets.flatten())
    assert batch.dropout_seeds is not None
    assert len(set(batch.dropout_seeds.tolist())) == len(batch.tokens)

    document_starts = torch.zeros_like(batch.tokens)
    if batch.document_starts is not None:
        document_starts = batch.document_starts
    inside_document = torch.arange(length) - document_starts
    assert torch.equal(batch.position_ids - batch.position_ids[:, :1], inside_document)
    if full.document_starts is not None:
        sequence_begins = torch.arange(0, LENGTH, length).repeat(2)[:, None]
        expected = (full.document_starts.reshape(-1, length) - sequence_begins).clamp(min=0)
        assert torch.equal(document_starts, expected)


@pytest.mark.parametrize("mask_documents", [False, True])
def test_length_warmup_splits_samples_into_shorter_sequences(
    dataset: TokenDataset, masked: TokenDataset, mask_documents: bool
) -> None:
    """Samples are split until the warmup's number of samples is consumed, on any ranks."""
    data = dataset
    if mask_documents:
        data = masked
    options: dict[str, Any] = {"positions": Positions(max_offset=1000), "warmup": {4: 16, 8: 20}}
    for consumed, length in ((0, 4), (8, 4), (16, 8), (24, 16), (40, 16)):
        batches = make_loader(data, **options).step(consumed)
        full_batches = make_loader(data).step(consumed)
        assert [batch.tokens.shape for batch in batches] == [(2 * LENGTH // length, length)] * 4
        for batch, full in zip(batches, full_batches, strict=True):
            check_shorter(batch, full, length)
        for world_size in (2, 4):
            ranks = step_of_ranks(data, consumed, world_size, **options)
            assert rows(interleaved(ranks)) == rows(batches)
