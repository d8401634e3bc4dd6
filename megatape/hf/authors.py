"""Names and shapes of the authors' checkpoints (VITA-Group/TAPE) in terms of ours."""

from typing import Any

import torch
from torch import Tensor

from megatape.config import ModelConfig
from megatape.errors import UserError
from megatape.model.encodings import fire

# Their module -> our encoding.
ENCODINGS: dict[str, str] = {
    "adape": "tape",
    "adattention": "tape_attention_only",
    "adamlp": "tape_mlp_only",
    "adatensor": "tape_no_rotation_equivariance",
    "adavector": "tape_vector",
    "adawoeq": "tape_no_equivariance",
    "rope": "rope",
    "randrope": "randpe",
    "xpos": "xpos",
    "alibi": "alibi",
    "t5rb": "t5",
    "fire": "fire",
    "sincos": "sinusoidal",
    "nope": "nope",
}

_TOP = {"model.embed_tokens.weight": "embedding.weight", "model.norm.weight": "norm.weight", "lm_head.weight": "head.weight"}
# Several of theirs with one of our names are parts of one of our parameters, in this order.
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
    "post_attention_linears.0.weight": "position.gain",
    "post_attention_linears.1.weight": "position.gain",
    "pe.x_proj.weight": "position.content",
    "pe.up_proj.weight": "position.up",
    "pe.up_projs.0.weight": "position.up",
    "pe.up_projs.1.weight": "position.up",
    "pe.down_proj.weight": "position.down",
    "pe.down_projs.0.weight": "position.down",
    "pe.down_projs.1.weight": "position.down",
    "self_attn.relative_attention_bias.weight": "attention.bias.table",
    "self_attn.rotary_emb.mlp.0.weight": "attention.bias.inner_weight",
    "self_attn.rotary_emb.mlp.0.bias": "attention.bias.inner_bias",
    "self_attn.rotary_emb.mlp.2.weight": "attention.bias.outer_weight",
    "self_attn.rotary_emb.mlp.2.bias": "attention.bias.outer_bias",
    "self_attn.rotary_emb.c": "attention.bias.log_scale",
    "self_attn.rotary_emb.L_multiplier": "attention.bias.threshold",
}


def model_config(theirs: dict[str, Any]) -> ModelConfig:
    """Our configuration for one of theirs. Raises UserError for an encoding that we do not have."""
    kind = theirs["rpe_type"]
    if kind not in ENCODINGS:
        raise UserError(f"rpe_type {kind!r} has no counterpart here; known: {', '.join(ENCODINGS)}")
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
    """Our name of one of their parameters, or None for their constants. Raises UserError if unknown."""
    if theirs.endswith(("inv_freq", "init_L")):
        return None
    if theirs in _TOP:
        return _TOP[theirs]
    layer, _, rest = theirs.removeprefix("model.layers.").partition(".")
    if not layer.isdigit() or rest not in _LAYER:
        raise UserError(f"parameter {theirs!r} of the authors' code is not known")
    return f"blocks.{layer}.{_LAYER[rest]}"


def our_weights(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their parameters as ours, differentiable. Raises UserError for an unknown one or another constant than ours."""
    parts: dict[str, list[Tensor]] = {}
    for name in sorted(theirs):
        ours = our_name(name)
        if ours is not None:
            parts.setdefault(ours, []).append(theirs[name])
        elif name.endswith("init_L") and theirs[name].item() != fire.THRESHOLD:
            raise UserError(f"{name} is {theirs[name].item():g}; FIRE's threshold starts at {fire.THRESHOLD:g} here")
    return {name: _our_weight(name, tensors) for name, tensors in parts.items()}


def _our_weight(name: str, theirs: list[Tensor]) -> Tensor:
    if name.endswith("position.gain"):  # a matrix that acts through its row sums alone
        return torch.stack([gain.sum(1) for gain in theirs], dim=-1).squeeze(-1)
    if name.endswith("bias.table"):
        return theirs[0].T
    return torch.cat([part.reshape(1) if part.dim() == 0 else part for part in theirs])
