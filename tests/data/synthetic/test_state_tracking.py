"""State tracking: its groups, its words, and that no answer is read."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from megatape.data.shards.stored_split import StoredSplit
from megatape.data.synthetic.folder import write_task
from megatape.data.synthetic.state_tracking import A5, GENERATORS, S3, S5, Permutation, StateTracking, compose, identities
from megatape.data.training.example_dataset import ExampleDataset
from megatape.nn.targets import IGNORE_INDEX
from tests.helpers.data.synthetic import task


def _closure(generators: set[Permutation]) -> set[Permutation]:
    """The group that they generate."""
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
    """Which makes them hard: the commutators of S3 end at the identity after two steps, those of A5 never shrink."""
    group = set(kind.elements)
    assert len(group) == len(kind.elements) == order == len(kind.alphabet)
    assert _closure(group) == group
    assert kind.elements[0] == tuple(range(len(kind.elements[0])))
    for size in derived:
        group = _commutators(group)
        assert len(group) == size


def test_words_are_drawn_evenly() -> None:
    """The generators make all of A5, and words to the identity are counted as by listing all words."""
    assert _closure(set(GENERATORS.values())) == set(A5.elements)
    for upper, lower in (("X", "x"), ("Y", "y")):
        assert compose(GENERATORS[upper], GENERATORS[lower]) == A5.elements[0]
    for length in range(6):
        found = 0
        for word in itertools.product(GENERATORS.values(), repeat=length):
            product = A5.elements[0]
            for letter in word:
                product = compose(letter, product)
            found += product == A5.elements[0]
        assert identities(A5.elements[0], length) == found
    answers = [sample.text[-1] for sample in task("word_a5").samples("test", 1000)]
    assert abs(answers.count("1") - 500) < 80  # five standard deviations


def test_the_model_reads_no_answer(tmp_path: Path) -> None:
    """Else the product so far would stand before each element, and one multiplication would do."""
    made = task("state_s3")
    write_task(made, {"train": 4, "validation": 2}, tmp_path / "data")
    for packed in (False, True):
        dataset = ExampleDataset(StoredSplit(tmp_path / "data", "train"), 2 * (made.tokens("train") - 1), pack_examples=packed)
        samples = list(made.samples("train", 4))
        for index in range(dataset.num_samples):
            tokens = dataset.sample(index).tokens
            targets = dataset.sample(index).targets
            starts = np.flatnonzero(tokens == dataset.split.bos_id)
            assert len(starts) == (2 if packed else 1)
            for start in starts:
                length = made.splits["train"].characters
                assert (tokens[start + 2 : start + length : 2] == dataset.split.eos_id).all()
                read = dataset.split.tokenizer().decode(tokens[start + 1 : start + length : 2].tolist())
                asked = targets[start : start + length]
                assert (asked[::2] == IGNORE_INDEX).all()
                text = "".join(map("".join, zip(read, dataset.split.tokenizer().decode(asked[1::2].tolist()), strict=True)))
                assert text in [sample.text for sample in samples]
