"""Reading checkpoints of the reference implementation (VITA-Group/TAPE) with MegaTAPE's names and shapes."""

from typing import Any

import torch
from torch import Tensor

from megatape.config import ModelConfig
from megatape.encodings import fire

# Module in the reference -> encoding
REFERENCE_ENCODINGS: dict[str, str] = {
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
# Reference parameters sharing a name here are parts of one parameter, in this order.
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


def megatape_config(reference: dict[str, Any]) -> ModelConfig:
    """Return the model section for a reference configuration. Raises KeyError for an unknown encoding."""
    return ModelConfig.model_validate(
        {
            "encoding": REFERENCE_ENCODINGS[reference["rpe_type"]],
            "num_layers": reference["num_hidden_layers"],
            "hidden_size": reference["hidden_size"],
            "num_heads": reference["num_attention_heads"],
            "num_kv_heads": reference["num_key_value_heads"],
            "mlp_size": reference["intermediate_size"],
            "vocab_size": reference["vocab_size"],
            "position_size": reference["position_size"],
            "max_positions": reference["max_position_embeddings"],
            "norm_eps": reference["rms_norm_eps"],
            "rotary_base": float(reference.get("rope_theta", 10000.0)),
        }
    )


def megatape_name(reference_name: str) -> str | None:
    """Return our name for a reference parameter, or None for constants. Raises ValueError if it is unknown."""
    if reference_name.endswith(("inv_freq", "init_L")):
        return None
    if reference_name in _TOP:
        return _TOP[reference_name]
    layer, _, rest = reference_name.removeprefix("model.layers.").partition(".")
    if not layer.isdigit() or rest not in _LAYER:
        raise ValueError(f"parameter {reference_name!r} of the reference is unknown")
    return f"blocks.{layer}.{_LAYER[rest]}"


def megatape_weights(reference_weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert reference parameters into ours, keeping them differentiable.

    Raises ValueError for an unknown parameter, or a constant that differs from MegaTAPE's.
    """
    parts: dict[str, list[Tensor]] = {}
    for reference_name in sorted(reference_weights):
        name = megatape_name(reference_name)
        tensor = reference_weights[reference_name]
        if name is not None:
            parts.setdefault(name, []).append(tensor)
        elif reference_name.endswith("init_L") and tensor.item() != fire.THRESHOLD:
            raise ValueError(f"{reference_name} is {tensor.item():g}; FIRE's threshold starts at {fire.THRESHOLD:g} here")
    return {name: _megatape_weight(name, tensors) for name, tensors in parts.items()}


def _megatape_weight(name: str, parts: list[Tensor]) -> Tensor:
    if name.endswith("position.gain"):  # A matrix only acting through its row sums
        return torch.stack([gain.sum(1) for gain in parts], dim=-1).squeeze(-1)
    if name.endswith("bias.table"):
        return parts[0].T
    return torch.cat([part.reshape(1) if part.dim() == 0 else part for part in parts])
