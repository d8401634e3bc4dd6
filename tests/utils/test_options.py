"""Calls that are filled from options."""

from dataclasses import dataclass
from typing import Any

from megatape.utils.options import read_options
from tests.helpers.command_options import Options


def test_a_call_is_filled_by_name() -> None:
    @dataclass
    class Part:
        steps: int
        rule: tuple[str, ...]
        other: str = "usual"

    def work(folder: str, steps: int, number: int = 3) -> tuple[str, int, int]:
        return folder, steps, number

    values: dict[str, Any] = {"folder": "a", "steps": "7", "rule": ["b"]}
    options = read_options(Options, values)
    assert options.fill(Part) == Part(7, ("b",))
    assert options.fill(work, folder="c") == ("c", 7, 3)
