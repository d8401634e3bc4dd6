"""The position view of runs, as positions.js draws it."""

import base64
from pathlib import Path
from typing import Any

import numpy as np

from megatape.lab.report.curves import rounded
from megatape.lab.report.load import Run
from megatape.training.position_view import PositionView

MAX_MAPS = 2000  # of all runs together: about 6 MB of the page
MAX_STEPS = 30  # of a run
MAX_LAYERS = 12


def position_views(runs: list[Run], notes: list[str]) -> list[dict[str, Any]]:
    """An entry for each run that kept position views. A corrupted file adds a line to `notes`."""
    having = [run for run in runs if run.folder.list_position_views()]
    entries = (_entry(run, MAX_MAPS // len(having), notes) for run in having)
    return [entry for entry in entries if entry is not None]


def _entry(run: Run, max_maps: int, notes: list[str]) -> dict[str, Any] | None:
    # Later ones were written before the run continued from an earlier step.
    paths = {step: path for step, path in run.folder.list_position_views().items() if step <= run.last_step}
    depth = min(run.config.model.num_layers, MAX_LAYERS)
    steps = [list(paths)[index] for index in _spread(len(paths), max(2, min(MAX_STEPS, max_maps // depth)))]
    views = {step: view for step in steps if (view := _load(paths[step], notes)) is not None}
    if not views:
        return None
    last = views[max(views)]
    same = {step: view for step, view in views.items() if view.products.shape == last.products.shape}
    layers = _spread(len(last.norms), MAX_LAYERS)
    maps = np.stack([view.products[layers] for view in same.values()]).astype(np.float32)
    # One scale for all steps of a layer. A few large values would leave the rest white.
    limits = np.quantile(np.abs(maps), 0.995, axis=(0, 2, 3), keepdims=True)
    limits[limits == 0] = 1
    rows, columns = np.tril_indices(len(last.tokens))
    quantized = np.clip(np.rint(maps / limits * 127), -127, 127).astype(np.int8)[..., rows, columns]
    by_head = last.gains.shape[1] == run.config.model.num_heads and not run.config.model.encoding.startswith("tape_vector")
    return {
        "run": run.name,
        "tokens": last.tokens,
        "places": last.places.tolist(),
        "steps": list(same),
        "layers": [layer + 1 for layer in layers],
        "limits": [rounded(float(limit)) for limit in limits.flat],
        "maps": [[base64.b64encode(one.tobytes()).decode() for one in step] for step in quantized],
        "norms": [[rounded(float(norm)) for norm in view.norms] for view in same.values()],
        "gains": [[[rounded(float(gain)) for gain in layer] for layer in view.gains] for view in same.values()],
        "by": "head" if by_head else "entry",
    }


def _load(path: Path, notes: list[str]) -> PositionView | None:
    try:
        return PositionView.load(path)
    except (OSError, ValueError) as error:
        notes.append(f"{path} is not shown: {error}")
        return None


def _spread(count: int, at_most: int) -> list[int]:
    """At most `at_most` indices below `count` at equal distances, with the first and the last."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, at_most))})
