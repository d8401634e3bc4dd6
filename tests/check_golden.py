"""Compare our model with outputs of the authors' implementation.

    python tests/check_golden.py FILE [FILE ...]

A golden file is one forward and backward pass of the authors' code; its metadata says kind and sizes. Prints the largest
difference of logits, loss, hidden states, position states and gradients, and exits with 1 beyond the bound.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from megatape.model.build import build_model
from megatape.model.recorded_streams import recorded_streams

# Running as a script, the module finds tests/ this way.
sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.helpers.checks import bounds, reference_format
from tests.helpers.checks.bounds import relative_difference

# A gradient that is zero in exact arithmetic (FIRE's output bias, which softmax ignores) is pure rounding. So gradients are
# compared relative to at least a hundredth of the largest gradient in the file; a tenth of the smallest real one still shows.
GRADIENT_FLOOR = 0.01

# Using padding_idx=-1, the authors' embedding gets no gradient for the last id's row. Ours trains every row.
EMBEDDING = "model.embed_tokens.weight"


def differences(path: Path) -> dict[str, float]:
    """Return the largest difference of each quantity of the golden file at `path`."""
    with safe_open(path, framework="pt") as file:
        golden = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        metadata = file.metadata()
    golden |= {f"weights.{name}": weight for name, weight in drawn_weights(json.loads(metadata.get("drawn", "[]"))).items()}
    model = build_model(reference_format.megatape_config(json.loads(metadata["config"]) | {"rpe_type": metadata["kind"]}))
    reference = {
        name.removeprefix("weights."): tensor.requires_grad_() for name, tensor in golden.items() if name.startswith("weights.")
    }
    converted = reference_format.megatape_weights(reference)
    model.load_state_dict(converted)

    tokens = golden["input_ids"]
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    with recorded_streams(model) as streams:
        logits = model(tokens, positions)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()

    result = {"logits": relative_difference(logits, golden["logits"]), "loss": relative_difference(loss[None], golden["loss"])}
    for layer, (x, e) in enumerate(streams):
        if f"layers.{layer}.hidden_states" in golden:
            result[f"hidden_states.{layer}"] = relative_difference(x, golden[f"layers.{layer}.hidden_states"])
        if f"layers.{layer}.position_cos" in golden:
            assert e is not None
            # The reference's are [B, L, N, R], and have an angle twice that is stored once here: both must agree with it.
            for part, ours in zip(("cos", "sin"), e.chunk(2, dim=-1), strict=True):
                expected = golden[f"layers.{layer}.position_{part}"].transpose(1, 2)
                ours = ours.repeat(1, 1, 1, expected.shape[-1] // ours.shape[-1])
                result[f"position.{layer}.{part}"] = relative_difference(ours, expected)
    # Being linear, the conversion turns our gradients into the reference's, and is compared as well.
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if parameter.grad is None:  # Dead parameters: the last layer's position update, read by nothing
            converted[name] = converted[name].detach()
    live = [name for name, weight in converted.items() if weight.requires_grad]
    leaves = [name for name in reference if reference_format.megatape_name(name) in live]
    gradients = torch.autograd.grad(
        [converted[name] for name in live],
        [reference[name] for name in leaves],
        [parameters[name].grad for name in live],
    )
    reference_gradients = dict(zip(leaves, gradients, strict=True))
    embedding_gradient = reference_gradients[EMBEDDING].clone()
    embedding_gradient[-1] = 0
    reference_gradients[EMBEDDING] = embedding_gradient
    expected_gradients = {name.removeprefix("grads."): tensor for name, tensor in golden.items() if name.startswith("grads.")}
    largest = max(float(tensor.abs().max()) for tensor in expected_gradients.values())
    for name, expected in expected_gradients.items():
        result[f"grads.{name}"] = relative_difference(reference_gradients[name], expected, floor=GRADIENT_FLOOR * largest)
    if "drawn" not in metadata and (more := reference_gradients.keys() ^ expected_gradients.keys()):
        raise ValueError(f"gradients on one side only: {', '.join(sorted(more))}")
    return result


def drawn_weights(drawn: list[tuple[str, list[int]]]) -> dict[str, Tensor]:
    """Return the random weights of the golden files, by name and shape in drawing order.

    Matrices have standard deviation 0.6 / sqrt(columns), and vectors are around 1.
    """
    generator = torch.Generator().manual_seed(8)
    weights = {}
    for name, shape in drawn:
        numbers = torch.randn(shape, generator=generator)
        weights[name] = numbers * (0.6 / shape[1] ** 0.5) if len(shape) == 2 else 1 + 0.2 * numbers
    return weights


def bound(name: str) -> bounds.Bound:
    """Return the bound of a quantity."""
    return bounds.GOLDEN_GRADIENTS if name.startswith("grads.") else bounds.GOLDEN


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    failed = False
    for path in parser.parse_args().files:
        try:
            found = differences(path)
        except (OSError, KeyError, ValueError, SafetensorError) as error:
            print(f"{path}: FAILED: no golden file that this model can run: {error}")
            failed = True
            continue
        groups: dict[str, float] = {}
        for name, value in found.items():
            group = name.partition(".")[0]
            groups[group] = max(groups.get(group, 0.0), value)
        worst = max(found, key=lambda name: found[name] / bound(name).limit)
        ok = found[worst] <= bound(worst).limit
        failed |= not ok
        print(f"{path.name}: " + ", ".join(f"{group} {value:.1e}" for group, value in groups.items()))
        print(f"  {'ok' if ok else 'FAILED'}: largest {found[worst]:.1e} ({worst}), bound {bound(worst).limit:.0e}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
