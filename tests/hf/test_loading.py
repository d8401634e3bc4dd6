"""Every kind of folder that holds a model, loaded as one."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from megatape.hf.export import export
from megatape.hf.imports.importer import import_model
from megatape.hf.loading import load_exported, load_trained
from megatape.hf.lora import export_adapter
from megatape.model.trainable import freeze
from tests.helpers.adapters import CASES, TOKENS, adapted
from tests.helpers.command import Command
from tests.helpers.imported import write_llama3
from tests.helpers.tiny_models import save_tiny


def logits(folder: Path, adapter: Path | None = None) -> Tensor:
    with load_trained(folder, adapter=adapter) as loaded, torch.no_grad():
        found: Tensor = loaded.model(TOKENS).logits
    return found


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_models_of_others_and_imports(name: str, tmp_path: Path) -> None:
    """With the settings of earlier versions; in the stored precision; an import is the model that it refers to."""
    folder = tmp_path / name
    save_tiny(name, folder, dtype=torch.bfloat16, vocab_size=640)
    shutil.copytree(write_llama3(tmp_path / "tokenizer"), folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    earlier = {"rope_theta": rope.pop("rope_theta"), "torch_dtype": config.pop("dtype"), "_name_or_path": "somewhere/else"}
    if name != "llama":
        earlier["rope_scaling"] = rope
    (folder / "config.json").write_text(json.dumps(config | earlier))
    expected = AutoModelForCausalLM.from_pretrained(folder)(TOKENS).logits
    assert expected.dtype == torch.bfloat16 and torch.equal(logits(folder), expected)
    assert load_exported(folder).model.generation_config.eos_token_id == [602, 601]  # of generation_config.json

    import_model(folder, tmp_path / "import", "tape", None)
    assert torch.equal(logits(tmp_path / "import"), expected)
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match="tokenizer_config.json has changed since it was imported"):
        logits(tmp_path / "import")


def test_an_adapter_is_merged(sentencepiece_model: Path, tmp_path: Path, command: Command) -> None:
    checkpoint, ours = adapted(sentencepiece_model, **CASES["tape"])
    export_adapter(checkpoint, tmp_path / "adapter")
    export(checkpoint, tmp_path / "merged")
    freeze(ours, CASES["tape"]["trainable"], ())
    trained = {name for name, weight in ours.named_parameters() if weight.requires_grad}
    checkpoint.weights |= {name: checkpoint.weights[name] + 1 for name in trained}
    export(checkpoint, tmp_path / "base", merge=False)
    assert torch.equal(logits(tmp_path / "base", tmp_path / "adapter"), logits(tmp_path / "merged"))
    with load_trained(tmp_path / "base", adapter=tmp_path / "adapter") as loaded:
        assert loaded.name == f"{tmp_path / 'base'} with {tmp_path / 'adapter'}"
    texts = [
        command("generate", tmp_path / folder, "--prompt", "The fox", "--max-new-tokens", 20, *words)[1]
        for folder, *words in (("merged",), ("base", "--adapter", tmp_path / "adapter"), ("base",))
    ]
    assert texts[0] == texts[1] != texts[2]
    with pytest.raises(ValueError, match="merged is not the base of"):
        logits(tmp_path / "merged", tmp_path / "adapter")
