"""Shapes and encodings of exported models, and an export with the model it came from."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from megatape import registry
from megatape.model.transformer import Transformer
from tests.helpers.models.memory_checkpoint import VOCAB_SIZE

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"num_kv_heads": 2},
    "tied": {"tie_embeddings": True},
    "odd": {"hidden_size": 20, "num_heads": 3, "head_dim": 6, "mlp_size": 37, "position_size": 7},
    "single": {"num_layers": 1},
    "base": {"rotary_base": 300.0, "norm_eps": 1e-2},
}
FEATURES: dict[str, Any] = {"num_kv_heads": 2, "attention_bias": "qkvo", "qk_norm": True}
MIXED: dict[str, Any] = {"num_kv_heads": 2, "attention_bias": "qkv", "qk_norm": True}  # which no family but tape has
_YARN = {"original_length": 16, "beta_fast": 4.0, "beta_slow": 0.5, "truncate": False, "attention_factor": 1.2}
_LLAMA3 = {"original_length": 16, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS: dict[str, dict[str, Any]] = {
    kind: {"scaling": {"kind": kind, "factor": 4.0} | settings}
    for kind, settings in {"linear": {}, "theta": {}, "yarn": _YARN, "llama3": _LLAMA3}.items()
}
TWELVE: dict[str, Any] = {"num_heads": 12, "head_dim": 4, "max_positions": 1024}
ALL_SHAPES = SHAPES | SCALINGS | {"twelve": TWELVE, "features": FEATURES, "mixed": MIXED, "capped": {"logit_softcap": 0.5}}
ALL_SHAPES["partial"] = SCALINGS["yarn"] | {"num_kv_heads": 2, "head_dim": 16, "rotary_fraction": 0.5}
ALL_SHAPES["part"] = {"num_kv_heads": 2, "head_dim": 16, "rotary_fraction": 0.25}
ALL_SHAPES["log"] = {"num_kv_heads": 2, "attention_scale": "log_n"}
ALL_SHAPES["interleaved"] = {"num_kv_heads": 2, "num_layers": 4, "nope_every": 2}
HELD = (
    "fox",
    "path",
    "path_fox",
    "path_fox_scaled",
    "selective_rope",
    "selective_rope_linear",
    "selective_rope_constant",
    "selective_rope_gated",
    "tape_fox",
    "tape_selective_rope",
)  # encodings whose cache holds more than keys and values
# Every encoding, with grouped queries, and every scaling: (shape, encoding).
ENCODINGS = [("grouped", name) for name in registry.ENCODINGS]
ENCODINGS += [(kind, name) for kind in SCALINGS for name in ("rope", "tape")]
ENCODINGS += [("features", name) for name in ("tape", "t5", "rope")] + [("mixed", "rope")]
ENCODINGS += [("capped", name) for name in ("tape", "t5", "rope")]
ENCODINGS += [("partial", "tape"), ("partial", "rope")]
ENCODINGS += [("part", name) for name in ("tape_vector", "xpos", "randpe", "selective_rope")]
ENCODINGS += [("log", name) for name in ("tape", "alibi", "rope", "path_fox", "pope")]
ENCODINGS += [("interleaved", name) for name in ("tape", "tape_fox", "t5", "rope", "path_fox")]


class Exported(NamedTuple):
    """A folder and the model it came from."""

    folder: Path
    ours: Transformer

    def positions(self, tokens: Tensor, seed: int = 1234) -> Tensor:
        """Evaluation positions of tokens [B, N] in training's terms; 64 is the sequence length of the checkpoint's run."""
        positions = self.ours.encoding.positions(random_offset=False).evaluation(64, seed)
        return torch.from_numpy(positions)[: tokens.shape[1]].expand_as(tokens)

    def load(self, **options: Any) -> PreTrainedModel:
        """The model in the folder, fresh."""
        remote = (self.folder / "modeling_tape.py").exists()
        return AutoModelForCausalLM.from_pretrained(self.folder, trust_remote_code=remote, **options)


def random_tokens(batch: int, length: int) -> Tensor:
    return torch.randint(3, VOCAB_SIZE, (batch, length), generator=torch.Generator().manual_seed(7))
