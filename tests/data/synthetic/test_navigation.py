"""Walks on a ring or torus: a cell visited again has the same symbol, also after crossing the edge of the map."""

import pytest

from megatape.data.synthetic.task import Split, SyntheticSample
from tests.helpers.data.synthetic import task

MOVES = {"<": -1, ">": 1, "^": -1j, "_": 1j}  # the plane as complex numbers


def check_walk(sample: SyntheticSample, side: int) -> int:
    """Walk again, and check symbols and answers.

    Args:
        sample: Text of alternating moves and symbols.
        side: Number of cells in each direction of the map.

    Returns:
        Number of returns to a visited cell over the edge of the map.
    """
    keys = {answer.begin: answer.key for answer in sample.answers}
    cell = 0j
    index_of_visit: dict[complex, int] = {}
    num_returns = 0
    for index in range(1, len(sample.text), 2):
        moved = cell + MOVES[sample.text[index - 1]]
        cell = complex(moved.real % side, moved.imag % side)
        symbol = sample.text[index]
        expected_key = None
        if cell in index_of_visit:
            last_visit = index_of_visit[cell]
            assert symbol == sample.text[last_visit]
            if symbol != ".":
                expected_key = index - last_visit
            if cell != moved:
                num_returns += 1
        assert keys.get(index) == expected_key, (sample.text, index)
        index_of_visit[cell] = index
    return num_returns


@pytest.mark.parametrize("name", ["ring", "torus"])
@pytest.mark.parametrize("split", ["train", "test", "dense", "sparse"])
def test_answers_are_the_symbols_of_cells_visited_before(name: str, split: str) -> None:
    walks = task(name)
    description = walks.split(split)
    for sample in walks.samples(split, 50):
        check_walk(sample, description.options["side"])
        assert sample.answers[-1].end == len(sample.text)
        assert len(sample.text) <= description.characters


@pytest.mark.parametrize("name", ["ring", "torus"])
def test_a_walk_returns_over_the_edge_of_a_small_map(name: str) -> None:
    """On an endless map, cells beyond the edge would be new, and would have no answers."""
    walks = task(name)
    walks.splits["small"] = Split(200, "", {"side": 3, "blanks": 0.5})
    for sample in walks.samples("small", 20):
        assert check_walk(sample, side=3) > 5


@pytest.mark.parametrize(("split", "expected"), [("test", 0.5), ("dense", 0.2), ("sparse", 0.8)])
def test_a_share_of_the_cells_is_blank(split: str, expected: float) -> None:
    text = "".join(sample.text for sample in task("torus").samples(split, 100))
    num_symbols = len(text) / 2
    assert abs(text.count(".") / num_symbols - expected) < 0.1


def test_a_map_is_drawn_for_each_text() -> None:
    """Each text has its own map, because a model could memorize a single one."""
    symbols = set()
    for sample in task("ring").samples("train", 200):
        first_step_right = sample.text.index(">")
        symbols.add(sample.text[first_step_right + 1])
    assert len(symbols - {"."}) == 16
