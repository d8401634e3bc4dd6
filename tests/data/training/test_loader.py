from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.config.batches import BatchSizes
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.document_dataset import DocumentDataset
from megatape.data.training.evaluation_reader import EvaluationReader
from megatape.data.training.positions import Positions
from megatape.data.training.selection import SampleGroups
from megatape.data.training.token_dataset import TokenDataset
from megatape.nn.targets import IGNORE_INDEX
from tests.helpers.data.data_directory import Documents, MakeDirectory
from tests.helpers.runs.batches import interleaved, make_loader, rows

LENGTH = 16


@pytest.fixture
def dataset(make_directory: MakeDirectory, documents: Documents) -> TokenDataset:
    return TokenDataset(StoredSplit(make_directory(documents), "train"), LENGTH)


@pytest.fixture
def masked(dataset: TokenDataset, tmp_path: Path) -> TokenDataset:
    """The same data with document masks."""
    return TokenDataset(StoredSplit(tmp_path / "data", "train"), LENGTH, mask_documents=True)


def test_targets_are_the_next_tokens(dataset: TokenDataset) -> None:
    batches = make_loader(dataset).step(0)
    assert [batch.tokens.shape for batch in batches] == [(2, LENGTH)] * 4
    for batch in batches:
        assert batch.document_starts is None
        assert batch.tokens.dtype == batch.targets.dtype == batch.position_ids.dtype == torch.int64
        assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
        assert torch.equal(batch.position_ids, torch.arange(LENGTH).expand(2, -1))


def test_an_epoch_uses_every_sample_once(dataset: TokenDataset) -> None:
    stream = [tuple(dataset.sample(index).tokens.tolist()) for index in range(dataset.num_samples)]
    one = make_loader(dataset, batches=BatchSizes(1), micro_batch_size=1)
    epochs = [[rows(one.step(epoch * dataset.num_samples + k))[0][0] for k in range(dataset.num_samples)] for epoch in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(stream)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(
    ("mask_documents", "positions"),
    [(False, Positions()), (True, Positions(max_offset=1000)), (False, Positions(drawn_from=50))],
    ids=["plain", "offset", "drawn"],
)
def test_every_data_parallel_size_sees_the_same_global_sequence(
    dataset: TokenDataset, masked: TokenDataset, mask_documents: bool, positions: Positions
) -> None:
    dataset = masked if mask_documents else dataset
    options: dict[str, Any] = {"positions": positions}
    for consumed in (0, 8, 5 * dataset.num_samples - 3):
        whole = rows(make_loader(dataset, **options).step(consumed))
        assert len(set(whole)) > 6  # the third step spans the end of an epoch
        for world_size in (2, 4):
            ranks = [make_loader(dataset, rank, world_size, **options).step(consumed) for rank in range(world_size)]
            assert all(len(batches) == 4 // world_size for batches in ranks)
            in_order = interleaved(ranks)
            assert rows(in_order) == whole


def test_the_micro_batch_size_does_not_change_the_samples(dataset: TokenDataset) -> None:
    assert rows(make_loader(dataset, micro_batch_size=8).step(16)) == rows(make_loader(dataset, micro_batch_size=1).step(16))


def test_steps_depend_on_the_seed(dataset: TokenDataset) -> None:
    assert rows(make_loader(dataset).step(0)) != rows(make_loader(dataset, seed=4).step(0))


def test_equal_positions_are_one_row_in_memory(dataset: TokenDataset, masked: TokenDataset) -> None:
    """Also in a copy for another device: an encoding (fire) tells them without reading their values."""
    for data, equal in ((dataset, True), (masked, False)):
        batch = make_loader(data).step(0)[0]
        copy = batch.mapped(torch.clone)
        assert (batch.position_ids.stride(0) == 0) == (copy.position_ids.stride(0) == 0) == equal
        assert torch.equal(copy.position_ids, batch.position_ids)
        assert torch.equal(copy.tokens, batch.tokens)


def test_document_masks(masked: TokenDataset) -> None:
    """Compared with the definition, token by token."""
    for batch in make_loader(masked, positions=Positions(max_offset=9)).step(0):
        assert batch.document_starts is not None
        for tokens, targets, positions, document_starts in zip(
            batch.tokens.tolist(),
            batch.targets.tolist(),
            batch.position_ids.tolist(),
            batch.document_starts.tolist(),
            strict=True,
        ):
            start = 0
            for index, token in enumerate(tokens):
                assert document_starts[index] == start
                assert positions[index] - positions[0] == index - start
                if token == masked.split.eos_id:
                    assert targets[index] == IGNORE_INDEX
                    start = index + 1
                elif index + 1 < LENGTH:
                    assert targets[index] == tokens[index + 1]
                else:
                    assert targets[index] != IGNORE_INDEX


def test_document_masks_leave_the_tokens_alone(dataset: TokenDataset, masked: TokenDataset) -> None:
    plain = make_loader(dataset).step(0)
    changed = make_loader(masked).step(0)
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(plain, changed, strict=True))
    assert any((b.targets == IGNORE_INDEX).any() for b in changed)


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
def test_impossible_sizes(dataset: TokenDataset, options: dict[str, Any]) -> None:
    """Config.accumulation tells users of sizes that do not fit, before a loader is made."""
    with pytest.raises(AssertionError):
        make_loader(dataset, **options)


def test_negative_consumed(dataset: TokenDataset) -> None:
    with pytest.raises(AssertionError):
        make_loader(dataset).step(-1)


@pytest.mark.parametrize("groups", [{"": [5]}, {"": range(13)}, {"a": range(4), "b": [7, 9, 20], "c": [30]}], ids=str)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_evaluation_covers_the_samples_once_with_equal_batch_counts(
    dataset: TokenDataset, groups: SampleGroups, world_size: int
) -> None:
    """The samples of a batch are of one group, and padding has no targets."""
    ranks = [list(EvaluationReader(3, rank, world_size).batches(dataset, groups)) for rank in range(world_size)]
    num_batches = sum(-(-len(samples) // 3) for samples in groups.values())
    assert {len(batches) for batches in ranks} == {-(-num_batches // world_size)}
    found: dict[str, list[list[int]]] = {name: [] for name in groups}
    for step in zip(*ranks, strict=True):
        for name, batch in step:
            assert batch.tokens.shape == (3, LENGTH)
            found[name] += [row for row in batch.targets.tolist() if set(row) != {IGNORE_INDEX}]
    assert found == {name: [dataset.sample(one).targets.tolist() for one in samples] for name, samples in groups.items()}


def test_evaluation_masks_documents(masked: TokenDataset) -> None:
    _, batch = next(EvaluationReader(8).batches(masked, {"": range(8)}))
    assert batch.document_starts is not None
    assert (batch.targets[batch.tokens == masked.split.eos_id] == IGNORE_INDEX).all()
    assert torch.equal(batch.position_ids + batch.document_starts, torch.arange(LENGTH).expand(8, -1))


def test_drawn_positions_restart_at_documents(masked: TokenDataset) -> None:
    """The k-th token of every document has the k-th of the sample's drawn positions."""
    positions = Positions(drawn_from=50)
    for place, row in enumerate(rows(make_loader(masked, positions=positions).step(0))):
        draw = positions.training(LENGTH, 3, place).tolist()
        index = 0
        for token, position in zip(row[0], row[2], strict=True):
            assert position == draw[index]
            index = 0 if token == masked.split.eos_id else index + 1


def test_evaluation_uses_one_draw(dataset: TokenDataset) -> None:
    positions = Positions(drawn_from=50)
    for seed in (1, 2):
        reader = EvaluationReader(3, positions=positions, seed=seed)
        for _, batch in reader.batches(dataset, {"": range(13)}):
            assert torch.equal(batch.position_ids, torch.from_numpy(positions.evaluation(LENGTH, seed)).expand(3, -1))


def test_documents_as_samples_are_the_same_on_any_ranks(make_directory: MakeDirectory, documents: Documents) -> None:
    """The global sequence does not depend on ranks, every document occurs once per epoch, and its end is the last target."""
    whole = DocumentDataset(StoredSplit(make_directory(documents), "train"), 48)
    for consumed in (0, 5 * whole.num_samples - 3):
        expected = rows(make_loader(whole, positions=Positions(max_offset=1000)).step(consumed))
        for world_size in (2, 4):
            ranks = [
                make_loader(whole, rank, world_size, positions=Positions(max_offset=1000)).step(consumed)
                for rank in range(world_size)
            ]
            assert rows(interleaved(ranks)) == expected
    one = make_loader(whole, batches=BatchSizes(1), micro_batch_size=1)
    epoch = [one.step(place)[0] for place in range(whole.num_samples)]
    seen = [batch.targets[batch.targets != IGNORE_INDEX].tolist() for batch in epoch]
    assert sorted(seen) == sorted(document[1:].tolist() for document in documents)
    assert all(batch.document_starts is None for batch in epoch)


@pytest.mark.parametrize("mask_documents", [False, True])
def test_length_warmup(dataset: TokenDataset, masked: TokenDataset, mask_documents: bool) -> None:
    """Until samples are consumed, the same tokens with the same targets in shorter sequences, on any ranks: each sequence has
    positions and dropout of its own and sees no document that begins before it."""
    whole = masked if mask_documents else dataset
    stages = {4: 16, 8: 20}
    options: dict[str, Any] = {"positions": Positions(max_offset=1000), "warmup": stages}
    for consumed, length in ((0, 4), (8, 4), (16, 8), (24, 16), (40, 16)):
        batches = make_loader(whole, **options).step(consumed)
        full = make_loader(whole).step(consumed)
        assert [batch.tokens.shape for batch in batches] == [(2 * LENGTH // length, length)] * 4
        for short, long in zip(batches, full, strict=True):
            assert torch.equal(short.tokens.flatten(), long.tokens.flatten())
            assert torch.equal(short.targets.flatten(), long.targets.flatten())
            starts = torch.zeros_like(short.tokens) if short.document_starts is None else short.document_starts
            inside = torch.arange(length) - starts
            assert torch.equal(short.position_ids - short.position_ids[:, :1], inside)
            assert short.dropout_seeds is not None
            assert len(set(short.dropout_seeds.tolist())) == len(short.tokens)
            if long.document_starts is not None:
                begins = torch.arange(0, LENGTH, length).repeat(2)[:, None]
                assert torch.equal(starts, (long.document_starts.reshape(-1, length) - begins).clamp(min=0))
        for world_size in (2, 4):
            ranks = [make_loader(whole, rank, world_size, **options).step(consumed) for rank in range(world_size)]
            in_order = interleaved(ranks)
            assert rows(in_order) == rows(batches)
