"""A picture of an addition grid."""

from pathlib import Path

from matplotlib.figure import Figure

from megatape.tasks.addition import AdditionGrid


def draw_heat_map(grid: AdditionGrid, title: str, path: Path) -> None:
    """Write a PNG: exact match by operand lengths, with a frame around the trained ones."""
    size, trained = len(grid.correct), grid.trained_digits
    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.add_subplot()
    extent = (0.5, size + 0.5, 0.5, size + 0.5)
    image = axes.imshow(
        [[100 * share for share in row] for row in grid.accuracy], vmin=0, vmax=100, origin="lower", extent=extent
    )
    edge = min(trained, size) + 0.5
    axes.plot([0.5, edge, edge], [edge, edge, 0.5], color="red")
    axes.set(xlabel="digits of the second operand", ylabel="digits of the first operand")
    axes.set_title(title, fontsize="small")
    figure.colorbar(image, label="exact match (%)")
    figure.savefig(path, dpi=150)
