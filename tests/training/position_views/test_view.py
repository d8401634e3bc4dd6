"""Position views: a run's summaries of its position tensors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megatape.checkpoint.load.reader import CheckpointReader
from megatape.config import parse_config
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.hf.weights.checkpoint_weights import load_model
from megatape.lab.study.attention import layer_inputs
from megatape.run_folder import RunFolder
from megatape.training.callbacks.position_views import PositionViews
from megatape.training.position_views.view import MAX_TOKENS, PositionView
from megatape.training.reporting.step_metrics import StepMetrics
from megatape.training.validation.result import Validation
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.position_views import some_view
from tests.helpers.runs.run_context import make_context
from tests.helpers.runs.training_cases import TRAIN_CASES

# Maximum size of a view
KIB_PER_LAYER = 8.4

CASES: dict[str, dict[str, Any]] = {
    "data": {"zero.stage": 3},
    "tensor": {"zero.stage": 2, "parallel.tp": 2, "model.num_kv_heads": 4},
    "sequence": {"zero.stage": 1, "parallel.sp": 2, "model.num_kv_heads": 4},
    "context": {"zero.stage": 2, "parallel.cp": 2},
    "bfloat16": {"zero.stage": 3, "parallel.tp": 2, "training.precision": "bfloat16"},
    "tape_mlp_only": {"model.encoding": "tape_mlp_only"},
    "tape_vector": {"model.encoding": "tape_vector", "parallel.tp": 2},
    "nope_every": {"model.num_layers": 4, "model.nope_every": 2},
    "rope": {"model.encoding": "rope"},
}


@pytest.mark.slow
def test_equals_the_checkpoint_s_model(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """A view on data-, tensor-, sequence- and context-parallel ranks equals one made from the checkpoint in one process."""
    raw_config["training"]["steps"] = 2
    raw_config["model"]["max_positions"] = 96
    raw_config["data"]["sequence_length"] = 96
    cases = [{"name": name, "set": changes} for name, changes in CASES.items()]
    results = run_workers(TRAIN_CASES, 2, {"config": raw_config, "cases": cases}, tmp_path / "workers")
    assert [result.get("error") for result in results[0]] == [None] * len(cases)
    folders = {name: RunFolder(Path(raw_config["run"]["directory"]) / name) for name in CASES}
    assert not folders.pop("rope").positions.exists()
    for name, folder in folders.items():
        assert list(folder.list_position_views()) == [2]
        view = PositionView.load(folder.position_view(2))
        reader = CheckpointReader(folder.checkpoint(2))
        model = load_model(reader)
        gains = [getattr(block.position, "gain", None) for block in model.blocks[:-1]]
        if name == "tape_mlp_only":
            assert view.gains.shape == (1, 0)
        else:
            assert view.gains[0].all(), name
            for row, gain in zip(view.gains, gains, strict=True):
                expected_row = np.zeros_like(row)
                if gain is not None:
                    expected_row = gain.numpy(force=True)
                assert np.array_equal(row, expected_row), name
        assert view.places.tolist() == list(range(0, 96, 2))
        if name == "bfloat16":
            continue
        ids = torch.as_tensor(TokenDataset(StoredSplit(reader.config.data.path, "validation"), 96).tokens(0)[:-1])
        assert view.tokens == [reader.tokenizer().decode([token]) for token in ids[::2].tolist()]
        _, layers = layer_inputs.run(model, ids[None], torch.arange(96)[None])
        for layer, (products, norm) in enumerate(zip(view.products, view.norms, strict=True)):
            e = layers[layer].e
            assert e is not None
            expected_norm = float((2 * e.square().mean()).sqrt())
            assert_close([norm], [expected_norm], bounds.POSITION_VIEW, what=(name, layer))
            expected = layer_inputs.dot_products(layers[layer])
            assert expected is not None
            of_selected_tokens = expected[0, :, ::2, ::2].mean(0)
            assert_close(torch.as_tensor(products), of_selected_tokens, bounds.POSITION_VIEW, what=(name, layer))


def test_files_of_repeated_steps_are_replaced(raw_config: dict[str, Any], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (10, 20, 30):
        some_view(scale=step).save(folder, step)
    (folder.positions / "step-x.safetensors").touch()
    views = PositionViews(make_context(parse_config(raw_config, "test"), folder))
    views.on_start(20)
    assert list(folder.list_position_views()) == [10, 20, 30], "nothing is removed before a step is made"

    def make_step(step: int, view: PositionView | None) -> None:
        views.on_evaluate(step, Validation(1.0, view))
        views.on_step(StepMetrics(step, 1.0, 1.0, 1.0, step, step, 1.0, 1, None))

    make_step(21, None)
    assert list(folder.list_position_views()) == [10, 20]
    make_step(25, some_view(scale=25))
    assert list(folder.list_position_views()) == [10, 20, 25]
    assert PositionView.load(folder.position_view(20)).norms[1] == pytest.approx(21**0.5)


def test_size_on_disk(tmp_path: Path) -> None:
    """A layer takes at most KIB_PER_LAYER, even with as many heads as a 70B model."""
    folder = RunFolder(tmp_path)
    some_view(num_layers=80, num_tokens=MAX_TOKENS, num_heads=64).save(folder, 1)
    assert folder.position_view(1).stat().st_size <= 80 * KIB_PER_LAYER * 1024


@pytest.mark.parametrize("fault", ["empty", "truncated", "shapes", "tensors"])
def test_corrupted(tmp_path: Path, fault: str) -> None:
    folder = RunFolder(tmp_path)
    view = some_view()
    if fault == "shapes":
        view.tokens.pop()
    view.save(folder, 1)
    path = folder.position_view(1)
    content = path.read_bytes()
    if fault == "empty":
        content = b""
    elif fault == "truncated":
        content = content[:-1]
    elif fault == "tensors":
        content = content.replace(b"norms", b"forms")
    path.write_bytes(content)
    with pytest.raises(ValueError, match="step-00000001.safetensors is corrupted"):
        PositionView.load(path)


def test_picture() -> None:
    """Layers of any size are red on the diagonal, separated by a gray line."""
    picture = some_view(num_layers=2, num_tokens=4, scale=50).picture(magnified=1)
    assert picture.shape == (4, 2 * 5, 3)
    assert picture[0, 0].tolist() == picture[3, 8].tolist() == [255, 0, 0]
    assert picture[:, 4].tolist() == [[127] * 3] * 4
