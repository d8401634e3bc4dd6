"""Models as transformers saves them, to be imported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.data.tokenizers.files import load_tokenizer
from megatape.hf.exporting.sentencepiece import build_tokenizer, read_proto
from tests.helpers.models.tiny_models import save_tiny

# Model -> precision of its weights. All others are in bfloat16.
DTYPES = {"llama": torch.float16, "mistral": torch.float32}


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """Save a llama in several files, in a folder that the test may change."""
    save_tiny("llama", tmp_path / "llama", shard="40KB")
    return tmp_path / "llama"


@pytest.fixture
def source(sentencepiece_model: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function: source("qwen2") is a folder with that model and a tokenizer."""

    def save(name: str, **changes: Any) -> Path:
        folder = tmp_path / name
        save_tiny(name, folder, DTYPES.get(name, torch.bfloat16), **changes)
        tokenizer = build_tokenizer(read_proto(load_tokenizer(sentencepiece_model)))
        tokenizer.save(str(folder / "tokenizer.json"))
        tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
        return folder

    return save
