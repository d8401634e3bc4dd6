"""Hold our model against outputs of the authors' implementation.

    python tests/check_golden.py FILE [FILE ...]

A golden file is one forward and backward pass of the authors' code; its metadata says kind and sizes. Prints the largest
difference of logits, loss, hidden states, position states and gradients, and exits with 1 beyond the tolerance.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from megatape.export.authors import model_config, our_name, our_weight
from megatape.model.transformer import Transformer

# Both sides compute in float32 and sum in different orders. A logit is a sum of some hundred products of size 1, each rounded
# to 6e-8, through three layers: 1e-6 is usual. 1e-5 leaves room for longer sequences and other shapes, and is far below any
# change of the mathematics (a dropped gain moves logits by 1e-1). Differences are relative to the largest value of the
# compared tensor, so that small gradients are held to as many digits as large ones; but a gradient that is small because large
# terms cancel keeps their rounding (against float64, the gains' gradients are off by 4e-6 of their size here and by 2e-6 there), so
# its scale is at least a tenth of the largest gradient in the file: 1e-5 of that is still 1e-3 of the smallest gradients.
TOLERANCE = 1e-5


def differences(path: Path) -> dict[str, float]:
    """Largest difference of each compared quantity of the golden file at `path`."""
    with safe_open(path, framework="pt") as file:
        theirs = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        metadata = file.metadata()
    config = json.loads(metadata["config"]) | {"rpe_type": metadata["kind"]}
    model = Transformer(model_config(config))
    weights = {
        our_name(name.removeprefix("weights.")): tensor for name, tensor in theirs.items() if name.startswith("weights.")
    }
    model.load_state_dict({name: our_weight(name, tensor) for name, tensor in weights.items() if name})

    tokens = theirs["input_ids"]
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    states: list[tuple[Tensor, Tensor]] = []
    logits = model(tokens, positions, states=states)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()

    result = {"logits": difference(logits, theirs["logits"]), "loss": difference(loss[None], theirs["loss"])}
    for layer, (x, e) in enumerate(states):
        result[f"hidden_states.{layer}"] = difference(x, theirs[f"layers.{layer}.hidden_states"])
        if f"layers.{layer}.position_cos" in theirs:
            # Theirs are [B, L, N, R] with each angle twice; both halves must agree with our one.
            cos, sin = (theirs[f"layers.{layer}.position_{part}"].transpose(1, 2) for part in ("cos", "sin"))
            doubled = [part.repeat(1, 1, 1, 2) for part in e.chunk(2, dim=-1)]
            result[f"position.{layer}"] = max(difference(doubled[0], cos), difference(doubled[1], sin))
    largest = max(float(tensor.abs().max()) for name, tensor in theirs.items() if name.startswith("grads."))
    for name, parameter in model.named_parameters():
        their_name = next(key for key in theirs if key.startswith("weights.") and our_name(key[8:]) == name)[8:]
        expected = theirs.get(f"grads.{their_name}")
        if expected is None:  # dead parameters: the last layer's position update, which nothing reads
            result[f"grads.{name}"] = 0.0 if parameter.grad is None else float(parameter.grad.abs().max())
            continue
        assert parameter.grad is not None, f"{name} got no gradient"
        ours = parameter.grad[:, None].expand_as(expected) if name.endswith("position.gain") else parameter.grad
        result[f"grads.{name}"] = difference(ours, expected, floor=0.1 * largest)
    return result


def difference(ours: Tensor, expected: Tensor, floor: float = 0.0) -> float:
    """Largest absolute difference over the largest expected value, or over `floor` if that is larger."""
    return float((ours.detach() - expected).abs().max() / expected.abs().max().clamp(min=floor))


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
        worst = max(found, key=lambda name: found[name])
        ok = found[worst] <= TOLERANCE
        failed |= not ok
        print(f"{path.name}: " + ", ".join(f"{group} {value:.1e}" for group, value in groups.items()))
        print(f"  {'ok' if ok else 'FAILED'}: largest {found[worst]:.1e} ({worst}), tolerance {TOLERANCE:.0e}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
