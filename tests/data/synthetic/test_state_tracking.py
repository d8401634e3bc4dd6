"""State tracking: its groups, its words, and inputs without answers."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from megatape.data.shards.stored_split import StoredSplit
from megatape.data.synthetic.folder import write_task
from megatape.data.synthetic.state_tracking import A5, GENERATORS, S3, S5, Permutation, StateTracking, compose, identities
from megatape.data.training.datasets.example_dataset import ExampleDataset
from megatape.nn.targets import IGNORE_INDEX
from tests.helpers.data.synthetic import task


def _closure(generators: set[Permutation]) -> set[Permutation]:
    """Return the generated group."""
    group = set(generators)
    new = set(generators)
    while new:
        new = {compose(a, b) for a in new for b in generators} - group
        group |= new
    return group


def _inverse(permutation: Permutation) -> Permutation:
    return tuple(permutation.index(point) for point in range(len(permutation)))


def _commutators(group: set[Permutation]) -> set[Permutation]:
    pairs = itertools.product(group, repeat=2)
    return _closure({compose(compose(a, b), compose(_inverse(a), _inverse(b))) for a, b in pairs})


@pytest.mark.parametrize(("kind", "order", "derived"), [(S3, 6, [3, 1]), (A5, 60, [60]), (S5, 120, [60, 60])])
def test_a5_and_s5_are_not_solvable(kind: type[StateTracking], order: int, derived: list[int]) -> None:
    """Solvable groups are easier: commutators of S3 shrink to the identity in two steps, those of A5 never shrink."""
    group = set(kind.elements)
    assert len(kind.elements) == order
    assert len(group) == order
    assert len(kind.alphabet) == order
    assert _closure(group) == group
    assert kind.elements[0] == tuple(range(len(kind.elements[0])))
    for size in derived:
        group = _commutators(group)
        assert len(group) == size


def test_the_generators_generate_a5() -> None:
    """A capital letter is the inverse of its small letter."""
    identity = A5.elements[0]
    assert _closure(set(GENERATORS.values())) == set(A5.elements)
    assert compose(GENERATORS["X"], GENERATORS["x"]) == identity
    assert compose(GENERATORS["Y"], GENERATORS["y"]) == identity


@pytest.mark.parametrize("length", range(6))
def test_words_to_the_identity_are_counted_as_by_listing_them(length: int) -> None:
    identity = A5.elements[0]
    count = 0
    for word in itertools.product(GENERATORS.values(), repeat=length):
        product = identity
        for letter in word:
            product = compose(letter, product)
        count += product == identity
    assert identities(identity, length) == count


def test_half_of_the_words_are_the_identity() -> None:
    answers = [sample.text[-1] for sample in task("word_a5").samples("test", 1000)]
    assert abs(answers.count("1") - 500) < 80  # five standard deviations


@pytest.mark.parametrize("packed", [False, True])
def test_the_model_reads_no_answer(tmp_path: Path, packed: bool) -> None:
    """A model that reads answers would know the product so far before each element, and need only one multiplication."""
    state_tracking = task("state_s3")
    texts = [sample.text for sample in state_tracking.samples("train", 4)]
    write_task(state_tracking, {"train": 4, "validation": 2}, tmp_path / "data")
    length = state_tracking.splits["train"].characters
    split = StoredSplit(tmp_path / "data", "train")
    dataset = ExampleDataset(split, 2 * (state_tracking.tokens("train") - 1), pack_examples=packed)
    tokenizer = split.tokenizer()

    for index in range(dataset.num_samples):
        sample = dataset.sample(index)
        starts = np.flatnonzero(sample.tokens == split.bos_id)
        assert len(starts) == 1 + packed
        for start in starts:
            tokens = sample.tokens[start : start + length]
            targets = sample.targets[start : start + length]
            assert (tokens[2::2] == split.eos_id).all()
            assert (targets[::2] == IGNORE_INDEX).all()
            elements = tokenizer.decode(tokens[1::2].tolist())
            answers = tokenizer.decode(targets[1::2].tolist())
            text = "".join(element + answer for element, answer in zip(elements, answers, strict=True))
            assert text in texts
