"""What an evaluation task says about itself. The command knows no task by name: megatape/registry.py lists them.

A task's file imports torch where it computes, not at its top: its arguments are part of the command's help.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from megatape.hf.loading import LoadedModel


class Result(Protocol):
    """What an evaluation found."""

    @property
    def summary(self) -> str:
        """One line for the console."""

    def describe(self) -> dict[str, Any]:
        """Everything, for a JSON file."""

    def draw(self, title: str, path: Path) -> None:
        """Write a picture of it as a PNG file."""


class Task:
    """One way to measure a trained model: a dataclass whose fields are the arguments that it declares."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Declare what the task needs to know beyond the model and where to write."""

    def evaluate(self, loaded: "LoadedModel") -> Result:
        """Measure the model. Raises ValueError if it does not fit the task."""
        raise NotImplementedError
