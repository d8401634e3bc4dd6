"""Fixtures of exported models, and of tiny models as transformers saves them. No test reaches the hub."""

import os
from collections.abc import Callable
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
from transformers import PreTrainedModel

from tests.helpers.models.exports import exported, sentencepiece_model  # noqa: F401 (fixtures)
from tests.helpers.models.tiny_models import save_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, PreTrainedModel]]:
    """Return a function: tiny("qwen2") is that model's folder, which no test changes, and the model."""
    made: dict[str, tuple[Path, PreTrainedModel]] = {}

    def make(name: str) -> tuple[Path, PreTrainedModel]:
        if name not in made:
            folder = tmp_path_factory.mktemp("tiny") / name
            made[name] = folder, save_tiny(name, folder)
        return made[name]

    return make
