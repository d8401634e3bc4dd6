"""Position views of runs, in the form that positions.js draws."""

import base64
from pathlib import Path
from typing import Any

import numpy as np

from megatape.lab.report.curves import rounded
from megatape.lab.report.run import Run
from megatape.training.position_views.view import PositionView

# Maximum number of maps of all runs together, about 6 MB of the page.
MAX_MAPS = 2000
# Maximum numbers of steps and layers of one run.
MAX_STEPS = 30
MAX_LAYERS = 12
# Quantile of a layer's values that gets the full color.
FULL_COLOUR = 0.995


def position_views(runs: list[Run], notes: list[str]) -> list[dict[str, Any]]:
    """Return the entry of each run that kept position views.

    Args:
        runs: Runs of the page.
        notes: Gets a line for each corrupted file.
    """
    with_views = [run for run in runs if run.folder.list_position_views()]
    entries = []
    for run in with_views:
        entry = _entry(run, MAX_MAPS // len(with_views), notes)
        if entry is not None:
            entries.append(entry)
    return entries


def _entry(run: Run, max_maps: int, notes: list[str]) -> dict[str, Any] | None:
    """Return the entry of a run, or None if none of its position views can be read."""
    views = _load_views(run, max_maps, notes)
    if not views:
        return None
    last = views[max(views)]
    views = {step: view for step, view in views.items() if view.products.shape == last.products.shape}
    layers = _spread(len(last.norms), MAX_LAYERS)

    # [steps, layers, tokens, tokens]
    maps = np.stack([view.products[layers] for view in views.values()]).astype(np.float32)
    # One scale for all steps of a layer. A few large values would leave the rest white.
    limits = np.quantile(np.abs(maps), FULL_COLOUR, axis=(0, 2, 3), keepdims=True)
    limits[limits == 0] = 1
    levels = np.clip(np.rint(maps / limits * 127), -127, 127).astype(np.int8)
    rows, columns = np.tril_indices(len(last.tokens))
    triangles = levels[..., rows, columns]

    model = run.config.model
    gains_by = "entry"
    if last.gains.shape[1] == model.num_heads and not model.encoding.startswith("tape_vector"):
        gains_by = "head"
    return {
        "run": run.name,
        "tokens": last.tokens,
        "places": last.places.tolist(),
        "steps": list(views),
        "layers": [layer + 1 for layer in layers],
        "limits": _rounded_all(limits.ravel()),
        "maps": [_encoded(step) for step in triangles],
        "norms": [_rounded_all(view.norms) for view in views.values()],
        "gains": [_rounded_rows(view.gains) for view in views.values()],
        "by": gains_by,
    }


def _load_views(run: Run, max_maps: int, notes: list[str]) -> dict[int, PositionView]:
    """Load the position views of some steps of a run, by step."""
    # Views of later steps were written before the run continued from an earlier step.
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


def _encoded(layers: np.ndarray) -> list[str]:
    """Encode the map of each layer in base64."""
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
    """Return at most `at_most` evenly spaced indices below `count`, with the first and the last."""
    places = np.linspace(0, count - 1, min(count, at_most))
    return sorted({round(place) for place in places})
