"""Fixtures for exported models: a tokenizer, models of several shapes, and a temporary cache for remote code."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import transformers.dynamic_module_utils
from transformers import PreTrainedModel

from megatape.data.tokenizers.sentencepiece import train_tokenizer
from megatape.hf.exporting.exporter import export
from tests.helpers.models.exports import ALL_SHAPES, Exported
from tests.helpers.models.memory_checkpoint import VOCAB_SIZE, memory_checkpoint
from tests.helpers.models.tiny_models import save_tiny


@pytest.fixture(scope="session", autouse=True)
def modules_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("modules")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = "The quick brown fox jumps over the lazy dog, and then\n    the dog jumps\n    over the fox 12345 times.\n" * 3
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    path.write_bytes(train_tokenizer([text], VOCAB_SIZE - 10))
    return path


@pytest.fixture(scope="session")
def exported(sentencepiece_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Exported]:
    """Return a function: exported("odd", encoding="rope", precision="bfloat16") is that model, exported once."""
    made: dict[tuple[str, str, str], Exported] = {}

    def make(shape: str, encoding: str = "tape", precision: str = "float32") -> Exported:
        key = (shape, encoding, precision)
        if key not in made:
            folder = tmp_path_factory.mktemp("exported") / "-".join(key)
            changes = ALL_SHAPES[shape] | {"encoding": encoding}
            checkpoint, ours = memory_checkpoint(sentencepiece_model, precision=precision, **changes)
            export(checkpoint, folder)
            made[key] = Exported(folder, ours)
        return made[key]

    return make


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
