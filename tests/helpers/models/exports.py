"""Shapes and encodings of exported models, and fixtures exporting them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from megatape import registry
from megatape.config.layers.layer_pattern import parse_pattern
from megatape.data.tokenizers.sentencepiece import train_tokenizer
from megatape.hf.exporting.exporter import export
from megatape.model.transformer import Transformer
from tests.helpers.models.memory_checkpoint import VOCAB_SIZE, memory_checkpoint

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"num_kv_heads": 2},
    "tied": {"tie_embeddings": True},
    "odd": {"hidden_size": 20, "num_heads": 3, "head_dim": 6, "mlp_size": 37, "position_size": 7},
    "single": {"num_layers": 1},
    "base": {"rotary_base": 300.0, "norm_eps": 1e-2},
}
FEATURES: dict[str, Any] = {"num_kv_heads": 2, "attention_bias": "qkvo", "qk_norm": True}
# Only the family tape supports this combination.
MIXED: dict[str, Any] = {"num_kv_heads": 2, "attention_bias": "qkv", "qk_norm": True}
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
# Encoding of the model -> mixture of encodings and windows. Windows are shorter than the texts in tests.
_MIXTURES = {
    "tape": "tape, rope@4, tape@5, nope@1",
    "rope": "rope@4*2, alibi, nope@3",
    "tape_fox": "tape_fox@4, rope, fox@5, tape_fox",
    "path_fox": "path_fox@4, nope, path_fox",
    "tape_selective_rope": "fox@4, tape_selective_rope@6, tape_selective_rope@full",
    "pope": "pope@2, cope@5",
    "fire": "fire@4, t5",
    "grape_ap": "grape_ap@4, fire, kerple_log",
    "repo": "repo@4, nope",
    "rope_conv": "rope_conv@4, rope",
    "selective_rope": "selective_rope@4, nope",
}
for _encoding, _layers in _MIXTURES.items():
    ALL_SHAPES[f"mixture_of_{_encoding}"] = {
        "num_kv_heads": 2,
        "num_layers": len(parse_pattern(_layers).kinds),
        "layers": _layers,
    }
# Encodings whose cache holds more than keys and values.
HELD = (
    "rope_conv",
    "fox",
    "grape_ap",
    "path",
    "path_fox",
    "path_fox_scaled",
    "selective_rope",
    "selective_rope_linear",
    "selective_rope_linear_32",
    "selective_rope_constant",
    "selective_rope_gated",
    "tape_fox",
    "tape_selective_rope",
)
# Every encoding, with grouped queries, and every scaling: (shape, encoding).
ENCODINGS = [("grouped", name) for name in registry.ENCODINGS]
ENCODINGS += [(kind, name) for kind in SCALINGS for name in ("rope", "tape")]
ENCODINGS += [("features", name) for name in ("tape", "t5", "rope")] + [("mixed", "rope")]
ENCODINGS += [("capped", name) for name in ("tape", "t5", "rope")]
ENCODINGS += [("partial", "tape"), ("partial", "rope")]
ENCODINGS += [("part", name) for name in ("tape_vector", "xpos", "randpe", "rope_conv", "repo", "selective_rope")]
ENCODINGS += [("log", name) for name in ("tape", "alibi", "rope", "path_fox", "pope")]
ENCODINGS += [("interleaved", name) for name in ("tape", "tape_fox", "t5", "rope", "path_fox")]
ENCODINGS += [(f"mixture_of_{name}", name) for name in _MIXTURES]


class Exported(NamedTuple):
    """An export.

    Attributes:
        folder: Exported model.
        ours: The exported model.
    """

    folder: Path
    ours: Transformer

    def positions(self, tokens: Tensor, seed: int = 1234) -> Tensor:
        """Return the positions used in training code for evaluating tokens [B, N]. Samples in the run have 64 tokens."""
        positions = self.ours.encoding.positions(random_offset=False).evaluation(64, seed)
        return torch.from_numpy(positions)[: tokens.shape[1]].expand_as(tokens)

    def load(self, **options: Any) -> PreTrainedModel:
        """Load the model in the folder."""
        remote = (self.folder / "modeling_tape.py").exists()
        return AutoModelForCausalLM.from_pretrained(self.folder, trust_remote_code=remote, **options)


def random_tokens(batch: int, length: int) -> Tensor:
    return torch.randint(3, VOCAB_SIZE, (batch, length), generator=torch.Generator().manual_seed(7))


@pytest.fixture(scope="session")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file with a small trained tokenizer."""
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
