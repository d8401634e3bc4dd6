"""Walks: every symbol is that of its place, and places of the map meet again behind its edge."""

import pytest

from megatape.data.synthetic.task import Split
from tests.helpers.data.synthetic import task

MOVES = {"<": -1, ">": 1, "^": -1j, "_": 1j}  # the plane as complex numbers


def _check(name: str, split: Split, text: str, answers: dict[int, int]) -> int:
    """Walk again; `answers` are places of the text and distances. Returns the returns over an edge."""
    side = split.options["side"]
    place = 0j
    visits = dict[complex, int]()
    over = 0
    for step in range(0, len(text), 2):
        moved = place + MOVES[text[step]]
        place = complex(moved.real % side, moved.imag % side)
        over += place != moved and place in visits
        if place in visits:
            assert text[step + 1] == text[visits[place]]
        expected = step + 1 - visits[place] if place in visits and text[step + 1] != "." else None
        assert answers.get(step + 1) == expected, (name, text, step)
        visits[place] = step + 1
    return over


@pytest.mark.parametrize("name", ["ring", "torus"])
@pytest.mark.parametrize("split", ["train", "test", "dense", "sparse"])
def test_answers_are_the_symbols_of_places_visited_before(name: str, split: str) -> None:
    made = task(name)
    for sample in made.samples(split, 50):
        _check(name, made.split(split), sample.text, {answer.begin: answer.key for answer in sample.answers})
        assert sample.answers[-1].end == len(sample.text) <= made.split(split).characters


@pytest.mark.parametrize("name", ["ring", "torus"])
def test_a_walk_returns_over_the_edge_of_a_small_map(name: str) -> None:
    """Were the map without end, places behind its edge would be new, and not be asked for."""
    made = task(name)
    split = Split(200, "", {"side": 3, "blanks": 0.5})
    made.splits["small"] = split
    returns = [
        _check(name, split, sample.text, {answer.begin: answer.key for answer in sample.answers})
        for sample in made.samples("small", 20)
    ]
    assert min(returns) > 5


def test_a_share_of_the_places_is_blank() -> None:
    made = task("torus")
    for name, share in (("test", 0.5), ("dense", 0.2), ("sparse", 0.8)):
        texts = "".join(sample.text for sample in made.samples(name, 100))
        assert abs(texts.count(".") / (len(texts) / 2) - share) < 0.1


def test_a_map_is_drawn_for_each_text() -> None:
    """Else a model could learn one map by heart."""
    first = [sample.text[: sample.text.index(">") + 2][-1] for sample in task("ring").samples("train", 200)]
    assert len(set(first) - {"."}) == 16
