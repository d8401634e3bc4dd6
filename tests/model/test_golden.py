"""Our model agrees with the authors' implementation: tests/check_golden.py on the files in tests/golden."""

from pathlib import Path

import pytest
import torch

from tests import check_golden
from tests.helpers.checks import bounds, reference_format
from tests.helpers.checks.bounds import assert_within

pytestmark = pytest.mark.numerics


FILES = sorted((Path(__file__).parents[1] / "golden").glob("*.safetensors"))


def test_there_are_golden_files() -> None:
    """Every encoding of the authors has a file, except the one that draws new positions in each call."""
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
    """If the gain is read by columns instead of rows, the comparison fails by a wide margin."""
    right = reference_format._megatape_weight

    def wrong(name: str, parts: list[torch.Tensor]) -> torch.Tensor:
        if name.endswith("position.gain"):
            return parts[0].sum(0)
        return right(name, parts)

    monkeypatch.setattr(reference_format, "_megatape_weight", wrong)
    (path,) = (path for path in FILES if path.stem == "adape")
    differences = check_golden.differences(path)
    assert differences["logits"] > 100 * bounds.GOLDEN.limit


def test_another_threshold_is_refused() -> None:
    with pytest.raises(ValueError, match="init_L is 80"):
        reference_format.megatape_weights({"model.layers.0.self_attn.rotary_emb.init_L": torch.tensor(80.0)})


def test_unknown_parameter_is_named() -> None:
    with pytest.raises(ValueError, match="model.layers.0.what.weight"):
        reference_format.megatape_name("model.layers.0.what.weight")
