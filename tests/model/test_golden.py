"""Our model agrees with the authors' implementation: tests/check_golden.py on the files in tests/golden."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file

from megatape.model.build import build_model
from tests import check_golden
from tests.helpers.checks import bounds, reference_format
from tests.helpers.checks.bounds import assert_within

pytestmark = pytest.mark.numerics


FILES = sorted((Path(__file__).parents[1] / "golden").glob("*.safetensors"))


def test_there_are_golden_files() -> None:
    """Every encoding by the authors has a file, except the one drawing new positions in each call."""
    assert {path.stem for path in FILES} == reference_format.REFERENCE_ENCODINGS.keys() - {"randrope"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_equals_the_authors(path: Path) -> None:
    differences = check_golden.differences(path)
    expected = {"logits", "loss", "hidden_states", "grads"}
    if path.stem.startswith("ada"):
        expected.add("position")
    assert expected <= {name.partition(".")[0] for name in differences}
    for name, difference in differences.items():
        assert_within(difference, check_golden.bound(name), name)


def test_notices_a_wrong_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the gain by columns instead of rows fails the comparison by a wide margin."""
    right = reference_format._megatape_weight

    def wrong(name: str, parts: list[torch.Tensor]) -> torch.Tensor:
        if name.endswith("position.gain"):
            return parts[0].sum(0)
        return right(name, parts)

    monkeypatch.setattr(reference_format, "_megatape_weight", wrong)
    (path,) = (path for path in FILES if path.stem == "adape")
    differences = check_golden.differences(path)
    assert differences["logits"] > 100 * bounds.GOLDEN.limit


def test_the_last_id_has_a_frozen_embedding(tmp_path: Path) -> None:
    """The authors' row for the last id has no gradient, so a file whose tokens include this id still equals our model."""
    (path,) = (path for path in FILES if path.stem == "rope")
    with safe_open(path, framework="pt") as file:
        golden = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        metadata = file.metadata()
    weights = {name: tensor for name, tensor in golden.items() if name.startswith("weights.")}
    tokens = golden["input_ids"]
    embedding = weights["weights.model.embed_tokens.weight"]
    tokens[:, 3] = len(embedding) - 1
    reference = {name.removeprefix("weights."): tensor for name, tensor in weights.items()}
    model = build_model(reference_format.megatape_config(json.loads(metadata["config"]) | {"rpe_type": metadata["kind"]}))
    model.load_state_dict(reference_format.megatape_weights(reference))
    logits = model(tokens, torch.arange(tokens.shape[1]).expand_as(tokens))
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    gradient = model.embedding.weight.grad
    assert gradient is not None
    assert gradient[-1].abs().max() > 0.1 * gradient.abs().max(), "our row of the last id is trained"
    frozen = gradient.clone()
    frozen[-1] = 0
    of_last_id = {
        "input_ids": tokens,
        "logits": logits.detach().contiguous(),
        "loss": loss.detach()[None],
        "grads.model.embed_tokens.weight": frozen,
    }
    last_id_file = tmp_path / "rope.safetensors"
    save_file(weights | of_last_id, last_id_file, metadata | {"drawn": "[]"})

    differences = check_golden.differences(last_id_file)

    assert differences.keys() == {"logits", "loss", "grads.model.embed_tokens.weight"}
    for name, difference in differences.items():
        assert_within(difference, check_golden.bound(name), name)


def test_another_threshold_is_refused() -> None:
    with pytest.raises(ValueError, match="init_L is 80"):
        reference_format.megatape_weights({"model.layers.0.self_attn.rotary_emb.init_L": torch.tensor(80.0)})


def test_unknown_parameter_is_named() -> None:
    with pytest.raises(ValueError, match="model.layers.0.what.weight"):
        reference_format.megatape_name("model.layers.0.what.weight")
