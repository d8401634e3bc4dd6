"""A heat map over a grid of two lengths."""

from pathlib import Path


def draw_heat_map(
    shares: list[list[float]], num_trained: int, labels: tuple[str, str], measure: str, title: str, path: Path
) -> None:
    """Write a PNG of `shares` (0 to 1) with a frame around the first `num_trained` rows and columns.

    labels: of the horizontal and the vertical axis. measure: label of the color bar."""
    from matplotlib.figure import Figure

    size = len(shares)
    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.add_subplot()
    extent = (0.5, size + 0.5, 0.5, size + 0.5)
    image = axes.imshow([[100 * share for share in row] for row in shares], vmin=0, vmax=100, origin="lower", extent=extent)
    edge = min(num_trained, size) + 0.5
    axes.plot([0.5, edge, edge], [edge, edge, 0.5], color="red")
    axes.set(xlabel=labels[0], ylabel=labels[1])
    axes.set_title(title, fontsize="small")
    figure.colorbar(image, label=measure)
    figure.savefig(path, dpi=150)
