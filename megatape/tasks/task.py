"""The interface of evaluation tasks, which megatape/registry.py lists.

A task's file imports torch inside functions only, because `megatape evaluate --help` imports the file.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from megatape.hf.loading import LoadedModel


class Result(Protocol):
    """Results of an evaluation."""

    @property
    def summary(self) -> str:
        """One line for the console."""

    def describe(self) -> dict[str, Any]:
        """All results, for a JSON file."""

    def draw(self, title: str, path: Path) -> None:
        """Write a picture of the results as a PNG file."""


class Task:
    """Base of evaluation tasks. A task is a dataclass whose fields are the arguments it declares."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Declare the task's arguments; the command adds the model and the output folder."""

    def evaluate(self, loaded: "LoadedModel") -> Result:
        """Evaluate the model. Raises ValueError if the model does not suit the task."""
        raise NotImplementedError
