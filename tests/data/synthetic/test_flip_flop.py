"""Flip-flop: shares of instructions, and bits that are read."""

import pytest

from tests.helpers.data.synthetic import task

COUNT = 50


def test_flip_flop() -> None:
    made = task("flip_flop")
    for split, ignored in (("test", 0.8), ("sparse", 0.98), ("dense", 0.1)):
        samples = list(made.samples(split, COUNT))
        shares = sum(sample.text.count("i") for sample in samples) / (COUNT * 64)
        # The first and the last of 64 instructions are never `i`; 0.04 is five standard deviations of 3,100 draws or more.
        assert shares == pytest.approx(ignored * 62 / 64, abs=0.04)
        for sample in samples:
            written = None
            for instruction, bit in zip(sample.text[::2], sample.text[1::2], strict=True):
                written = bit if instruction == "w" else written
                assert instruction != "r" or bit == written
            assert sample.text[0] == "w"
            assert sample.text[-2] == "r"
            assert [sample.text[answer.begin - 1] for answer in sample.answers] == ["r"] * sample.text.count("r")
            for answer in sample.answers:
                between = sample.text[answer.begin - answer.key - 1 : answer.begin - 1 : 2]
                assert between[0] == "w"
                assert "w" not in between[1:]
