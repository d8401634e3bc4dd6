"""Our model gives what the authors' implementation gives: tests/check_golden.py on the files in tests/golden."""

from pathlib import Path

import pytest
import torch

from megatape.export import authors
from tests import check_golden

FILES = sorted((Path(__file__).parents[1] / "golden").glob("*.safetensors"))


def test_there_are_golden_files() -> None:
    assert [path.stem for path in FILES] == ["adape", "rope"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_equals_the_authors(path: Path) -> None:
    found = check_golden.differences(path)
    compared = {name.partition(".")[0] for name in found}
    assert compared >= {"logits", "loss", "hidden_states", "grads"} | ({"position"} if path.stem == "adape" else set())
    assert max(found.values()) <= check_golden.TOLERANCE, found


def test_notices_a_wrong_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison fails by far when the gain is read by columns instead of rows."""

    def wrong(name: str, theirs: torch.Tensor) -> torch.Tensor:
        return theirs.sum(0) if name.endswith("position.gain") else theirs

    monkeypatch.setattr(check_golden, "our_weight", wrong)
    assert check_golden.differences(FILES[0])["logits"] > 100 * check_golden.TOLERANCE


def test_unknown_parameter_is_named() -> None:
    with pytest.raises(ValueError, match="model.layers.0.what.weight"):
        authors.our_name("model.layers.0.what.weight")
