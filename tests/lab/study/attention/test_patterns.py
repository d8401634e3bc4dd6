"""Picture of attention: its layers and its panels."""

import torch
from matplotlib.figure import Figure

from megatape.lab.study.attention.patterns import Row, draw_panels, shown


def test_shown_layers() -> None:
    assert [shown(depth) for depth in (1, 2, 4, 8, 12)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 8], [1, 2, 4, 8, 12]]
    assert shown(100) == [4, 8, 16, 32, 64, 100]


def test_panels_show_their_images_under_their_layers() -> None:
    """Each row has one symmetric color scale, from its own values."""
    images = {label: [torch.full((4, 4), scale * layer) for layer in (1, -2)] for label, scale in (("a", 1.0), ("b", 10.0))}
    figure = Figure()
    draw_panels(figure, [Row(*item) for item in images.items()], [1, 8])
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in panels] == ["layer 1", "layer 8", "", ""]
    assert [axes.get_ylabel() for axes in panels] == ["a", "", "b", ""]
    for axes, image, limit in zip(panels, [*images["a"], *images["b"]], (2.0, 2.0, 20.0, 20.0), strict=True):
        assert torch.equal(torch.from_numpy(axes.images[0].get_array().data), image)
        assert axes.images[0].get_clim() == (-limit, limit)
