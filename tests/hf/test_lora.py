"""LoRA against peft: the same loss and gradients, adapters that peft loads, merged models."""

import json
import re
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from megatape.hf.adapter_export import export_adapter
from megatape.hf.adapter_files import PREFIX
from megatape.hf.export import export
from megatape.hf.importer import import_model
from megatape.model.trainable import freeze
from megatape.model.transformer import Transformer
from tests.helpers import bounds
from tests.helpers.adapters import CASES, TARGETS, TOKENS, adapted
from tests.helpers.bounds import assert_close
from tests.helpers.command import Command
from tests.helpers.memory_checkpoint import memory_checkpoint

pytestmark = pytest.mark.numerics


def load(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()


def logits(model: Transformer) -> Tensor:
    return model(TOKENS, torch.arange(TOKENS.shape[1]).expand_as(TOKENS))


@pytest.mark.parametrize("encoding", ["rope", "tape"])
def test_loss_and_gradients_are_those_of_peft(sentencepiece_model: Path, tmp_path: Path, encoding: str) -> None:
    checkpoint, ours = adapted(sentencepiece_model, ["adapters"], encoding=encoding)
    export(checkpoint, tmp_path / "base", merge=False)
    theirs = get_peft_model(load(tmp_path / "base"), LoraConfig(r=3, lora_alpha=6, target_modules=list(TARGETS.values())))
    named = {name: weight for name, weight in theirs.named_parameters() if weight.requires_grad}
    pairs = {}
    for name, weight in ours.named_parameters():
        if ".adapter." in name:
            _, layer, part, target, _, matrix = name.split(".")
            part = {"attention": "self_attn"}.get(part, part)
            key = f"{PREFIX}model.layers.{layer}.{part}.{TARGETS[target]}.lora_{matrix.upper()}.default.weight"
            pairs[name] = weight, named.pop(key)
            pairs[name][1].data.copy_(weight.data)
    assert pairs and not named
    count = TOKENS[:, 1:].numel()
    targets = torch.cat([TOKENS[:, 1:], torch.full((2, 1), -100)], dim=1)
    loss = ours(TOKENS, torch.arange(TOKENS.shape[1]).expand_as(TOKENS), targets=targets) / count
    their_loss = theirs(TOKENS, labels=TOKENS).loss
    assert_close(loss, their_loss, bounds.EXPORTED, what="loss")
    loss.backward()
    their_loss.backward()
    for name, (weight, their_weight) in pairs.items():
        assert weight.grad is not None and their_weight.grad is not None
        assert_close(weight.grad, their_weight.grad, bounds.GOLDEN_GRADIENTS, what=name)


@pytest.mark.parametrize("case", CASES)
def test_peft_loads_the_adapter(sentencepiece_model: Path, tmp_path: Path, case: str) -> None:
    """Onto a base whose trained weights were other ones; and the merged model gives the same logits."""
    checkpoint, ours = adapted(sentencepiece_model, **CASES[case])
    export_adapter(checkpoint, tmp_path / "adapter")
    export(checkpoint, tmp_path / "merged")
    freeze(ours, CASES[case]["trainable"], [])
    trained = {name for name, weight in ours.named_parameters() if weight.requires_grad}
    expected = logits(ours)
    checkpoint.weights |= {name: checkpoint.weights[name] + 1 for name in trained}
    export(checkpoint, tmp_path / "base", merge=False)
    assert_close(load(tmp_path / "merged")(TOKENS).logits, expected, bounds.EXPORTED, what="merged")
    model = PeftModel.from_pretrained(load(tmp_path / "base"), tmp_path / "adapter").eval()
    assert_close(model(TOKENS).logits, expected, bounds.EXPORTED, what="peft")


def test_what_peft_cannot_hold(sentencepiece_model: Path, tmp_path: Path) -> None:
    beside, _ = adapted(sentencepiece_model, ["adapters", "blocks.1.mlp.down.weight"])
    with pytest.raises(ValueError, match="trains blocks.1.mlp.down.weight beside the adapter of its layer"):
        export_adapter(beside, tmp_path / "adapter")
    without, _ = memory_checkpoint(sentencepiece_model)
    with pytest.raises(ValueError, match="without model.lora, so it has no adapter"):
        export_adapter(without, tmp_path / "adapter")
    damaged, _ = adapted(sentencepiece_model, ["adapters"])
    del damaged.weights["blocks.0.mlp.up.adapter.b"]
    for write in (export, export_adapter):
        with pytest.raises(ValueError, match="they differ in blocks.0.mlp.up.adapter.b: the checkpoint is corrupted"):
            write(damaged, tmp_path / "adapter")
    assert not list(tmp_path.glob("adapter*"))


@pytest.mark.parametrize("case", ["tape", "tied", "biased"])
def test_an_adapter_knows_its_base(sentencepiece_model: Path, tmp_path: Path, command: Command, case: str) -> None:
    """Merged into it, it gives the merged export bit for bit in float32; another model is refused, also one of the same
    shape."""
    checkpoint, ours = adapted(sentencepiece_model, **CASES[case])
    export_adapter(checkpoint, tmp_path / "adapter")
    export(checkpoint, tmp_path / "merged")
    freeze(ours, CASES[case]["trainable"], ())
    trained = {name for name, weight in ours.named_parameters() if weight.requires_grad}
    checkpoint.weights |= {name: checkpoint.weights[name] + 1 for name in trained}
    export(checkpoint, tmp_path / "base", merge=False)
    status, _, errors = command("export", tmp_path / "adapter", tmp_path / "out", "--base", tmp_path / "base")
    assert status == 0, errors
    assert_equal_folders(tmp_path / "out", tmp_path / "merged")

    name = "blocks.1.mlp.down.weight"
    checkpoint.weights[name] = checkpoint.weights[name].clone()
    checkpoint.weights[name][-1, -1] += 1e-3
    export(checkpoint, tmp_path / "changed", merge=False)
    export(adapted(sentencepiece_model, ["adapters"], encoding="rope", num_layers=3)[0], tmp_path / "deep", merge=False)
    for base, told in {
        "changed": "changed is not the base of .*: model.layers.1.mlp.down_proj.weight has other values in float32",
        "deep": "deep is not the base of",
        "merged": "merged is not the base of",
    }.items():
        status, _, errors = command("export", tmp_path / "adapter", tmp_path / "none", "--base", tmp_path / base)
        assert status == 2 and errors.count("\n") == 1 and re.search(told, errors), errors
    assert "give --base DIR" in command("export", tmp_path / "adapter", tmp_path / "none")[2]
    (tmp_path / "adapter" / "base.json").unlink()
    assert "no base.json" in command("export", tmp_path / "adapter", tmp_path / "none", "--base", tmp_path / "base")[2]
    assert not list(tmp_path.glob("none*"))


def test_an_import_stands_for_its_base(sentencepiece_model: Path, tmp_path: Path, command: Command) -> None:
    checkpoint, _ = adapted(sentencepiece_model, **CASES["adapters"])
    export_adapter(checkpoint, tmp_path / "adapter")
    export(checkpoint, tmp_path / "merged")
    export(checkpoint, tmp_path / "base", merge=False)
    import_model(tmp_path / "base", tmp_path / "import", "rope", None)
    status, _, errors = command("export", tmp_path / "adapter", tmp_path / "out", "--base", tmp_path / "import")
    assert status == 0, errors
    assert_equal_folders(tmp_path / "out", tmp_path / "merged")


def assert_equal_folders(found: Path, expected: Path) -> None:
    """The same files, but for the layout of config.json, and the same tensors."""
    assert {path.name for path in found.iterdir()} == {path.name for path in expected.iterdir()}
    ours, theirs = (json.loads((folder / "config.json").read_text()) for folder in (found, expected))
    assert ours == theirs
    tensors, others = (load_file(folder / "model.safetensors") for folder in (found, expected))
    assert tensors.keys() == others.keys() and all(torch.equal(tensors[name], value) for name, value in others.items())
