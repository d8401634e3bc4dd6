"""Names and shapes of the authors' checkpoints (VITA-Group/TAPE) in terms of ours."""

from typing import Any

from torch import Tensor

from megatape.config import ModelConfig

ENCODINGS = {"adape": "tape", "rope": "rope"}  # their module -> our encoding

_TOP = {"model.embed_tokens.weight": "embedding.weight", "model.norm.weight": "norm.weight", "lm_head.weight": "head.weight"}
_LAYER = {
    "input_layernorm.weight": "attention_norm.weight",
    "self_attn.q_proj.weight": "attention.query.weight",
    "self_attn.k_proj.weight": "attention.key.weight",
    "self_attn.v_proj.weight": "attention.value.weight",
    "self_attn.o_proj.weight": "attention.output.weight",
    "post_attention_layernorm.weight": "mlp_norm.weight",
    "mlp.gate_proj.weight": "mlp.gate.weight",
    "mlp.up_proj.weight": "mlp.up.weight",
    "mlp.down_proj.weight": "mlp.down.weight",
    "post_attention_linear.weight": "position.gain",
    "pe.x_proj.weight": "position.content",
    "pe.up_proj.weight": "position.up",
    "pe.down_proj.weight": "position.down",
}


def model_config(theirs: dict[str, Any]) -> ModelConfig:
    """Our configuration for one of theirs. Raises ValueError for an encoding that we do not have."""
    kind = theirs["rpe_type"]
    if kind not in ENCODINGS:
        raise ValueError(f"rpe_type {kind!r} has no counterpart here; known: {', '.join(ENCODINGS)}")
    return ModelConfig.model_validate(
        {
            "encoding": ENCODINGS[kind],
            "num_layers": theirs["num_hidden_layers"],
            "hidden_size": theirs["hidden_size"],
            "num_heads": theirs["num_attention_heads"],
            "num_kv_heads": theirs["num_key_value_heads"],
            "mlp_size": theirs["intermediate_size"],
            "vocab_size": theirs["vocab_size"],
            "position_size": theirs["position_size"],
            "max_positions": theirs["max_position_embeddings"],
            "norm_eps": theirs["rms_norm_eps"],
            "rotary_base": float(theirs.get("rope_theta", 10000.0)),
        }
    )


def our_name(theirs: str) -> str | None:
    """Our name of one of their parameters, or None for what we do not store (frequency tables). Raises ValueError if unknown."""
    if theirs.endswith("inv_freq"):
        return None
    if theirs in _TOP:
        return _TOP[theirs]
    layer, _, rest = theirs.removeprefix("model.layers.").partition(".")
    if not layer.isdigit() or rest not in _LAYER:
        raise ValueError(f"parameter {theirs!r} of the authors' code is not known")
    return f"blocks.{layer}.{_LAYER[rest]}"


def our_weight(name: str, theirs: Tensor) -> Tensor:
    """Their parameter as ours. Their L x L attention gain acts through its row sums alone."""
    return theirs.sum(1) if name.endswith("position.gain") else theirs
