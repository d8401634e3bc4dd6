"""Which layers a picture of attention shows."""

from megatape.study.patterns import shown


def test_layers_of_the_picture() -> None:
    assert [shown(depth) for depth in (1, 2, 4, 8, 12)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 8], [1, 2, 4, 8, 12]]
    assert shown(100) == [4, 8, 16, 32, 64, 100]
