"""Properties of every synthetic task: its texts, answers and splits."""

import pytest

from megatape.data.synthetic.task import SIZES, Size, SyntheticSample
from megatape.registry import SYNTHETIC_TASKS
from tests.helpers.data.synthetic import task

COUNT = 50


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SYNTHETIC_TASKS)
def test_a_task_describes_its_splits_and_alphabet(name: str, size: Size) -> None:
    synthetic_task = task(name, size)
    assert synthetic_task.splits["train"] == synthetic_task.splits["test"]
    assert len(synthetic_task.tests) >= 2
    for split, description in synthetic_task.splits.items():
        assert bool(description.differs) == (split not in ("train", "test"))
    assert len(set(synthetic_task.alphabet)) == len(synthetic_task.alphabet)
    for character in synthetic_task.alphabet:
        assert not character.isspace()


def check_answers(sample: SyntheticSample, copies: bool) -> None:
    """Check that answers follow each other up to the end of the text, and that copied answers are where their keys say."""
    ends = [answer.end for answer in sample.answers]
    assert ends[-1] == len(sample.text)
    assert ends == sorted(ends)
    for answer in sample.answers:
        assert 0 < answer.begin < answer.end
        if copies:
            length = answer.end - answer.begin
            source = answer.begin - answer.key
            assert source >= 0
            assert length <= answer.key
            assert sample.text[source : source + length] == sample.text[answer.begin : answer.end]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SYNTHETIC_TASKS)
def test_samples_fit_the_description_of_their_split(name: str, size: Size) -> None:
    synthetic_task = task(name, size)
    for split, description in synthetic_task.splits.items():
        samples = list(synthetic_task.samples(split, 5))
        assert list(synthetic_task.samples(split, 5)) == samples
        for sample in samples:
            assert len(sample.text) <= description.characters
            assert set(sample.text) <= set(synthetic_task.alphabet)
            check_answers(sample, synthetic_task.copies)


@pytest.mark.parametrize("name", SYNTHETIC_TASKS)
def test_splits_are_drawn_separately(name: str) -> None:
    synthetic_task = task(name)
    drawn = [tuple(synthetic_task.samples(split, COUNT)) for split in ("train", "validation", "test")]
    assert len(set(drawn)) == 3


def test_a_definition_is_identified_by_its_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another size or a changed constant gives another hash."""
    definition = task("flip_flop").definition
    assert task("flip_flop").definition == definition
    assert task("flip_flop", "small").definition != definition
    monkeypatch.setattr("megatape.data.synthetic.flip_flop.IGNORE", 0.81)
    assert task("flip_flop").definition != definition
