"""Opening every kind of model folder the same way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.errors import UserError
from megatape.hf.importing.importer import import_model
from megatape.hf.model_folder import FolderKind, open_model_folder
from tests.helpers.models.exports import Exported
from tests.helpers.models.tiny_models import save_tiny

CHECKPOINT = Path(__file__).parents[1] / "compatibility" / "fixtures" / "run" / "checkpoints" / "step-00000004"


def test_kinds(exported: Callable[..., Exported], tmp_path: Path) -> None:
    """An export with rotary positions is a plain transformers folder."""
    save_tiny("qwen2", tmp_path / "qwen2", dtype=torch.bfloat16)
    import_model(tmp_path / "qwen2", tmp_path / "imported", "tape", None)
    folders: dict[Path, tuple[str, Path, torch.dtype]] = {
        CHECKPOINT: ("checkpoint", CHECKPOINT, torch.float32),
        tmp_path / "imported": ("import", tmp_path / "qwen2", torch.bfloat16),
        (tape := exported("grouped").folder): ("export", tape, torch.float32),
        (rope := exported("grouped", "rope").folder): ("transformers", rope, torch.float32),
        tmp_path / "qwen2": ("transformers", tmp_path / "qwen2", torch.bfloat16),
    }
    for path, (kind, files, dtype) in folders.items():
        opened = open_model_folder(path)
        weights: Any = opened.weights()
        assert (opened.kind.value, opened.files, weights.dtype) == (kind, files, dtype)
        for name, shape in weights.shapes().items():
            assert tuple(weights.tensor(name).shape) == shape
        if kind != "checkpoint":
            with pytest.raises(UserError, match="is not a checkpoint that holds only what was trained: leave out `base`"):
                open_model_folder(path, base=tmp_path)


def test_folders_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none: no such folder: give a checkpoint, an export, an import or a model"):
        open_model_folder(tmp_path / "none")
    # Its content is not read yet.
    assert open_model_folder(tmp_path).kind is FolderKind.TRANSFORMERS
    for content in ("{", "[]", '{"model_type": ["tape"]}'):
        (tmp_path / "config.json").write_text(content)
        assert open_model_folder(tmp_path).kind is FolderKind.TRANSFORMERS
    with pytest.raises(FileNotFoundError, match="neither model.safetensors nor"):
        open_model_folder(tmp_path).weights()
    with pytest.raises(FileNotFoundError, match="is a run, not a checkpoint; its newest checkpoint is"):
        open_model_folder(CHECKPOINT.parents[1]).weights()
