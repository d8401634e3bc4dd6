"""Pictures of attention: layers and panels."""

import pytest
import torch
from matplotlib.figure import Figure

from megatape.lab.study.attention.patterns import Row, draw_panels, shown


@pytest.mark.parametrize(
    ("num_layers", "expected"),
    [
        (1, [1]),
        (2, [1, 2]),
        (4, [1, 2, 4]),
        (8, [1, 2, 4, 8]),
        (12, [1, 2, 4, 8, 12]),
        (100, [4, 8, 16, 32, 64, 100]),
    ],
)
def test_shown_layers_are_powers_of_two_and_the_last(num_layers: int, expected: list[int]) -> None:
    assert shown(num_layers) == expected


def test_panels_show_their_images_under_their_layers() -> None:
    """Each row has one symmetric color scale, from its own values."""
    rows = []
    for label, scale in (("a", 1.0), ("b", 10.0)):
        rows.append(Row(label, [torch.full((4, 4), scale), torch.full((4, 4), -2 * scale)]))
    figure = Figure()

    draw_panels(figure, rows, [1, 8])

    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in panels] == ["layer 1", "layer 8", "", ""]
    assert [axes.get_ylabel() for axes in panels] == ["a", "", "b", ""]
    images = [*rows[0].images, *rows[1].images]
    limits = [2.0, 2.0, 20.0, 20.0]
    for axes, image, limit in zip(panels, images, limits, strict=True):
        assert torch.equal(torch.from_numpy(axes.images[0].get_array().data), image)
        assert axes.images[0].get_clim() == (-limit, limit)
