"""Repeat the observations about the authors' addition code in docs/results/addition_code.md.

The script builds layers of the published code with small sizes, runs them on random inputs, and asserts what the page
says about them. It needs a clone of the code, torch, transformers, einops and omegaconf, and takes seconds.

    git clone https://github.com/zhuconv/arithmetic && git -C arithmetic checkout 55f877d
    pip install einops omegaconf
    python docs/results/addition_code.py arithmetic
"""

import argparse
import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LENGTH = 12
BATCH = 2
HEADS = 4
HEAD_DIM = 8
HIDDEN = HEADS * HEAD_DIM
NUM_LAYERS = 3
MLP_SIZE = 64
# Position whose token changes in the test of causality.
CHANGED = 7


def load_architectures(clone: Path) -> tuple[Any, Any, Any]:
    """Import three modules of the clone, without its package's __init__, which imports training and data.

    Args:
        clone: Folder of the clone.

    Returns:
        The modules `attention`, `embeddings` and `crammed_adadepthrecurrent`.
    """
    folder = clone / "cramming" / "architectures"
    if not folder.is_dir():
        sys.exit(f"{folder}: no such folder: give the folder of a clone of zhuconv/arithmetic")
    package = types.ModuleType("architectures")
    package.__path__ = [str(folder)]
    sys.modules["architectures"] = package
    names = ("attention", "embeddings", "crammed_adadepthrecurrent")
    attention, embeddings, recurrent = (import_module(f"architectures.{name}") for name in names)
    return attention, embeddings, recurrent


def make_block(recurrent: Any, encoding: str) -> Any:
    """Build a block of TAPE layers with the settings of crammed-adadepthrecurrent.yaml, but small.

    Args:
        recurrent: Module `crammed_adadepthrecurrent`.
        encoding: "adape" or "adayarn", the code's names for TAPE.
    """
    from omegaconf import OmegaConf

    attention = {
        "type": "self-attention",
        "num_attention_heads": HEADS,
        "skip_output_projection": False,
        "qkv_bias": False,
        "bias_in_proj": False,
        "max_length": 0,
        "rotary_embedding": encoding,
        "seq_op_in_fp32": False,
        "sequence_op": "torch-softmax",
        "sub_normalization": False,
    }
    settings = {
        "hidden_size": HIDDEN,
        "intermed_size": MLP_SIZE,
        "input_injection_type": "add",
        "norm": "LayerNorm",
        "norm_eps": 1e-12,
        "norm_scheme": "post",
        "nonlin": "GELUglu",
        "sub_normalization": False,
        "use_bias": False,
        "attention": attention,
    }
    config = OmegaConf.create(settings)
    layers = [recurrent.AdaTransformerLayer(index, config) for index in range(NUM_LAYERS)]
    block = recurrent.TransformerBlock(layers, config)
    for layer in layers:
        # The class draws these from a normal distribution of variance 1 until the model's own initialization.
        torch.nn.init.xavier_normal_(layer.attn.in_proj_weight)
    return block


def random_positions() -> tuple[Tensor, Tensor]:
    """Return random position states, as cosines and sines [L, B, H, R]."""
    shape = (LENGTH, BATCH, HEADS, HEAD_DIM)
    return torch.randn(shape), torch.randn(shape)


def causal_mask() -> Tensor:
    """Return the mask of pairs that attention excludes, [1, 1, L, L]."""
    return torch.ones(1, 1, LENGTH, LENGTH).tril() < 0.5


def check_positions_are_unused(block: Any, encoding: str) -> None:
    """Assert that hidden states do not depend on position states, and that TAPE's weights get no gradient."""
    hidden = torch.randn(LENGTH, BATCH, HIDDEN)
    injected = torch.zeros_like(hidden)
    first, _ = block(hidden, random_positions(), injected, causal_mask())
    second, _ = block(hidden, random_positions(), injected, causal_mask())
    assert torch.equal(first, second), "hidden states depend on the position states"

    first.square().sum().backward()
    with_gradient = []
    without_gradient = []
    for name, weight in block.named_parameters():
        if weight.grad is None:
            without_gradient.append(name)
        else:
            with_gradient.append(name)
    tape_weights = [name for name, _ in block.named_parameters() if ".pe." in name]
    assert tape_weights, "the block has no weights of TAPE"
    assert with_gradient, "no weight has a gradient"
    assert without_gradient == tape_weights, without_gradient
    print(
        f"{encoding}: equal hidden states for two random position states; no gradient for {len(tape_weights)} of TAPE's weights"
    )


def check_update_is_not_causal(block: Any, encoding: str) -> None:
    """Assert that attention's position output at early tokens depends on a later token."""
    attention = block.layers[0].attn
    positions = random_positions()
    hidden = torch.randn(LENGTH, BATCH, HIDDEN)
    changed = hidden.clone()
    changed[CHANGED] = torch.randn(BATCH, HIDDEN)
    with torch.no_grad():
        output, state = attention(hidden, positions, causal_mask())
        other_output, other_state = attention(changed, positions, causal_mask())
    assert torch.equal(output[:CHANGED], other_output[:CHANGED]), "hidden states are not causal"
    difference = (state[0][:CHANGED] - other_state[0][:CHANGED]).abs().max().item()
    assert difference > 0.01, f"the position output is causal: it changes by {difference}"
    print(f"{encoding}: another token {CHANGED} changes the position output of tokens before it by up to {difference:.2f}")


def check_random_positions(embeddings: Any) -> None:
    """Assert that the rotary encoding with random positions equals the one without, for any seed."""
    queries = torch.randn(LENGTH, BATCH, HEADS, HEAD_DIM)
    keys = torch.randn(LENGTH, BATCH, HEADS, HEAD_DIM)
    rotary = embeddings.Rotary(HEAD_DIM, seq_dim=0)
    randomized = embeddings.RandomRotary(HEAD_DIM, seq_dim=0)
    for seed in range(10):
        torch.manual_seed(seed)
        for expected, actual in zip(rotary(queries, keys), randomized(queries, keys), strict=True):
            assert torch.equal(expected, actual), f"randomized positions differ from 0, 1, 2, ... with seed {seed}"
    print("randomized: rotated queries and keys equal those of rope, bit for bit, for ten seeds")


def main() -> None:
    """Check all observations, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path, help="folder of the clone")
    _, embeddings, recurrent = load_architectures(parser.parse_args().clone)
    torch.manual_seed(0)
    for encoding in ("adape", "adayarn"):
        block = make_block(recurrent, encoding)
        check_positions_are_unused(block, encoding)
        check_update_is_not_causal(block, encoding)
    check_random_positions(embeddings)


if __name__ == "__main__":
    main()
