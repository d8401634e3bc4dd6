"""LoRA against peft: the same loss and gradients."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedModel

from megatape.hf.adapters.files import PREFIX
from megatape.hf.exporting.exporter import export
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.adapters import TARGETS, TOKENS, adapted

pytestmark = pytest.mark.numerics


def load(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()


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
    assert pairs
    assert not named
    count = TOKENS[:, 1:].numel()
    targets = torch.cat([TOKENS[:, 1:], torch.full((2, 1), -100)], dim=1)
    loss = ours(TOKENS, torch.arange(TOKENS.shape[1]).expand_as(TOKENS), targets=targets) / count
    their_loss = theirs(TOKENS, labels=TOKENS).loss
    assert_close(loss, their_loss, bounds.EXPORTED, what="loss")
    loss.backward()
    their_loss.backward()
    for name, (weight, their_weight) in pairs.items():
        assert weight.grad is not None
        assert their_weight.grad is not None
        assert_close(weight.grad, their_weight.grad, bounds.GOLDEN_GRADIENTS, what=name)
