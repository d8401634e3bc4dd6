"""Flipping bits: each flip changes one bit, and replicas show flips in replicated state."""

from pathlib import Path

import pytest
import torch

from tests.soak.bit_flips import KINDS, LASTING, NOTHING, Outcome, flipped, measure, once, table


@pytest.mark.parametrize("bit", [0, 15, 30, 31])
def test_a_flip_changes_one_bit_of_one_element(bit: int) -> None:
    tensor = torch.linspace(-1, 1, 12).reshape(3, 4)
    changed = flipped(tensor, bit, 0.5)
    difference = tensor.view(torch.int32) ^ changed.view(torch.int32)
    assert difference.count_nonzero() == 1
    assert int(difference[1, 2]) & 0xFFFFFFFF == 1 << bit
    assert torch.equal(flipped(changed, bit, 0.5), tensor)


def test_only_the_first_tensor_is_flipped() -> None:
    flip = once(30, 0.0)
    tensor = torch.ones(2)
    assert flip(tensor) is not None
    assert flip(tensor) is None


def test_the_table() -> None:
    outcomes = [Outcome("weight", 30, NOTHING, 4, True), Outcome("moment", 3, "spike", 1, False)]
    lines = table({1: outcomes}).splitlines()
    assert len(lines) == 2 + len(KINDS)
    cells = [cell.strip() for cell in lines[2].split("|")[1:-1]]
    assert cells == ["1", "weight", "1", "0", "0", "0", "0", "0", "1", "1"]


@pytest.mark.slow
# A busy machine needs this long.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_flips_of_memory_and_lasting_faults_are_found(data_directory: Path, tmp_path: Path, stage: int) -> None:
    """Flips in one pass reach all ranks alike, so nothing can find them."""
    outcomes = measure(stage, 2, 2, data_directory, tmp_path, bit=20)
    for outcome in outcomes:
        is_found = outcome.kind in ("weight", "master weight", "moment", *LASTING)
        assert (outcome.found_by != NOTHING) == is_found, outcome
        if is_found:
            assert outcome.steps == 1
