"""Position views, in the form drawn by positions.js."""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from megatape.lab.report.charts import rounded
from megatape.lab.report.run import Run
from megatape.training.position_views.view import PositionView

# Maximum number of maps for all runs together, about 6 MB of the page.
MAX_MAPS = 2000
# Maximum numbers of steps and layers per run.
MAX_STEPS = 30
MAX_LAYERS = 12
# Quantile of a layer's values shown in full color.
FULL_COLOR = 0.995


@dataclass(frozen=True)
class RunPositions:
    """Position views of a run, under the names read by positions.js.

    Attributes:
        run: Run name.
        tokens: Tokens of the sample, as text.
        places: Index of each token in the text.
        steps: Steps with a view.
        layers: Layers shown, counting from 1.
        limits: Absolute product shown in full color, by layer.
        maps: Lower triangle of the products by step and layer, as int8 in base64. 127 is the layer's limit.
        norms: Norm of the position tensors, by step and layer.
        gains: Gains of the attention update, by step and layer.
        by: Whether a gain belongs to a head or to another entry.
    """

    run: str
    tokens: list[str]
    places: list[int]
    steps: list[int]
    layers: list[int]
    limits: list[float | None]
    maps: list[list[str]]
    norms: list[list[float | None]]
    gains: list[list[list[float | None]]]
    by: Literal["entry", "head"]


def load_positions(runs: list[Run], notes: list[str]) -> list[RunPositions]:
    """Load position views, for each run having any.

    Args:
        runs: Runs on the page.
        notes: Receives a line for each corrupted file.
    """
    with_views = [run for run in runs if run.folder.list_position_views()]
    loaded = []
    for run in with_views:
        positions = _load_run(run, MAX_MAPS // len(with_views), notes)
        if positions is not None:
            loaded.append(positions)
    return loaded


def _load_run(run: Run, max_maps: int, notes: list[str]) -> RunPositions | None:
    """Load the position views of a run. Return None if none can be read."""
    views = _load_views(run, max_maps, notes)
    if not views:
        return None
    last = views[max(views)]
    views = {step: view for step, view in views.items() if view.products.shape == last.products.shape}
    layers = _spread(len(last.norms), MAX_LAYERS)
    products = np.stack([view.products[layers] for view in views.values()]).astype(np.float32)
    limits, maps = _quantize(products)

    model = run.config.model
    gains_by: Literal["entry", "head"] = "entry"
    if last.gains.shape[1] == model.num_heads and not model.encoding.startswith("tape_vector"):
        gains_by = "head"
    return RunPositions(
        run=run.name,
        tokens=last.tokens,
        places=last.places.tolist(),
        steps=list(views),
        layers=[layer + 1 for layer in layers],
        limits=_rounded_all(limits),
        maps=[_encode_layers(step_maps) for step_maps in maps],
        norms=[_rounded_all(view.norms) for view in views.values()],
        gains=[_rounded_rows(view.gains) for view in views.values()],
        by=gains_by,
    )


def _quantize(products: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantize the lower triangles of product matrices [steps, layers, P, P].

    Returns:
        Limits [layers], and int8 values [steps, layers, P (P + 1) / 2] with 127 standing for the limit.
    """
    # One scale per layer for all steps. The largest values are cut off, because they would leave all others white.
    limits = np.quantile(np.abs(products), FULL_COLOR, axis=(0, 2, 3), keepdims=True)
    limits[limits == 0] = 1
    levels = np.clip(np.rint(products / limits * 127), -127, 127).astype(np.int8)
    rows, columns = np.tril_indices(products.shape[-1])
    return limits.ravel(), levels[..., rows, columns]


def _load_views(run: Run, max_maps: int, notes: list[str]) -> dict[int, PositionView]:
    """Load position views of some steps of a run: step -> view."""
    # Skip views of later steps, which are left over from before the run was rolled back.
    paths = {step: path for step, path in run.folder.list_position_views().items() if step <= run.last_step}
    steps = list(paths)
    num_layers = min(run.config.model.num_layers, MAX_LAYERS)
    num_steps = max(2, min(MAX_STEPS, max_maps // num_layers))
    views = {}
    for index in _spread(len(steps), num_steps):
        step = steps[index]
        view = _load(paths[step], notes)
        if view is not None:
            views[step] = view
    return views


def _encode_layers(layers: np.ndarray) -> list[str]:
    """Encode each layer's map in base64."""
    return [base64.b64encode(layer.tobytes()).decode() for layer in layers]


def _rounded_all(values: np.ndarray) -> list[float | None]:
    return [rounded(float(value)) for value in values]


def _rounded_rows(rows: np.ndarray) -> list[list[float | None]]:
    return [_rounded_all(row) for row in rows]


def _load(path: Path, notes: list[str]) -> PositionView | None:
    try:
        return PositionView.load(path)
    except (OSError, ValueError) as error:
        notes.append(f"{path} is not shown: {error}")
        return None


def _spread(count: int, at_most: int) -> list[int]:
    """Return at most `at_most` evenly spaced indices below `count`, including the first and the last."""
    indices = np.linspace(0, count - 1, min(count, at_most))
    return sorted({round(index) for index in indices})
