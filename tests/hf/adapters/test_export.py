"""Export of adapters, which peft loads."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from megatape.hf.adapters.export import export_adapter
from megatape.hf.exporting.exporter import export
from megatape.model.trainable import freeze
from megatape.model.transformer import Transformer
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.adapters import CASES, TOKENS, adapted
from tests.helpers.models.memory_checkpoint import memory_checkpoint

pytestmark = pytest.mark.numerics


def load(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()


def logits(model: Transformer) -> Tensor:
    return model(TOKENS, torch.arange(TOKENS.shape[1]).expand_as(TOKENS))


@pytest.mark.parametrize("case", CASES)
def test_peft_loads_the_adapter(sentencepiece_model: Path, tmp_path: Path, case: str) -> None:
    """peft loads the adapter onto a base with other trained weights. The merged model has the same logits."""
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
