"""LoRA against peft: the same loss and gradients, adapters that peft loads, merged models."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from megatape.hf.export import export
from megatape.hf.lora import PREFIX, export_adapter
from megatape.model.trainable import freeze
from megatape.model.transformer import Transformer
from tests.helpers import bounds
from tests.helpers.adapters import CASES, TARGETS, TOKENS, adapted
from tests.helpers.bounds import assert_close
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
