"""Flip-flop: shares of ignored instructions, and bits that are read."""

import pytest

from megatape.data.synthetic.task import SyntheticSample
from tests.helpers.data.synthetic import task

COUNT = 50
SHARES_OF_IGNORED = [("test", 0.8), ("sparse", 0.98), ("dense", 0.1)]


@pytest.mark.parametrize(("split", "share"), SHARES_OF_IGNORED)
def test_splits_differ_by_their_share_of_ignored_instructions(split: str, share: float) -> None:
    num_ignored = sum(sample.text.count("i") for sample in task("flip_flop").samples(split, COUNT))
    # The first and the last of 64 instructions are never `i`. With 3,100 draws or more, 0.04 is five standard deviations.
    assert num_ignored / (COUNT * 64) == pytest.approx(share * 62 / 64, abs=0.04)


def check_bits_read(sample: SyntheticSample) -> None:
    """Check that every bit read is the one written last."""
    written = None
    for instruction, bit in zip(sample.text[::2], sample.text[1::2], strict=True):
        if instruction == "w":
            written = bit
        if instruction == "r":
            assert bit == written


@pytest.mark.parametrize("split", [split for split, _ in SHARES_OF_IGNORED])
def test_every_bit_read_is_an_answer(split: str) -> None:
    """The key of an answer is its distance to the last `w`."""
    for sample in task("flip_flop").samples(split, COUNT):
        check_bits_read(sample)
        assert sample.text[0] == "w"
        assert sample.text[-2] == "r"
        instructions = [sample.text[answer.begin - 1] for answer in sample.answers]
        assert instructions == ["r"] * sample.text.count("r")
        for answer in sample.answers:
            since_written = sample.text[answer.begin - answer.key - 1 : answer.begin - 1 : 2]
            assert since_written[0] == "w"
            assert "w" not in since_written[1:]
