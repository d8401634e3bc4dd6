"""Every synthetic task: its texts, answers and splits."""

import pytest

from megatape.data.synthetic.task import SIZES, Size
from megatape.registry import SYNTHETIC_TASKS
from tests.helpers.data.synthetic import task

COUNT = 50


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SYNTHETIC_TASKS)
def test_samples_are_what_a_task_promises(name: str, size: Size) -> None:
    made = task(name, size)
    assert made.splits["train"] == made.splits["test"]
    assert len(made.tests) >= 2
    assert not any(character.isspace() for character in made.alphabet)
    assert len(set(made.alphabet)) == len(made.alphabet)
    for split, description in made.splits.items():
        assert bool(description.differs) == (split not in ("train", "test"))
        samples = list(made.samples(split, 5))
        assert samples == list(made.samples(split, 5))
        assert max(len(sample.text) for sample in samples) <= description.characters
        for sample in samples:
            assert set(sample.text) <= set(made.alphabet)
            ends = [answer.end for answer in sample.answers]
            assert ends[-1] == len(sample.text)
            assert ends == sorted(ends)
            assert all(0 < answer.begin < answer.end for answer in sample.answers)
            if made.copies:
                for answer in sample.answers:
                    source = answer.begin - answer.key
                    assert source >= 0
                    assert answer.end - answer.begin <= answer.key
                    assert sample.text[source : source + answer.end - answer.begin] == sample.text[answer.begin : answer.end]


@pytest.mark.parametrize("name", SYNTHETIC_TASKS)
def test_splits_are_drawn_apart(name: str) -> None:
    made = task(name)
    drawn = [tuple(made.samples(split, COUNT)) for split in ("train", "validation", "test")]
    assert len(set(drawn)) == 3


def test_a_definition_is_known_by_its_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    before = task("flip_flop").definition
    assert before == task("flip_flop").definition != task("flip_flop", "small").definition
    monkeypatch.setattr("megatape.data.synthetic.flip_flop.IGNORE", 0.81)
    assert task("flip_flop").definition != before
