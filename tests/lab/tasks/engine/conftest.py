"""Small exported models, and their evaluation by the command."""

from pathlib import Path

import pytest

from megatape.hf.exporting.exporter import export
from tests.helpers.lab.evaluations import LENGTHS, Evaluate
from tests.helpers.models.memory_checkpoint import memory_checkpoint
from tests.helpers.processes.command import Command


@pytest.fixture(scope="module")
def model(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "exported"
    checkpoint, _ = memory_checkpoint(data_directory / "tokenizer.model")
    export(checkpoint, folder)
    return folder


@pytest.fixture(scope="module")
def long(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with room for passkeys."""
    folder = tmp_path_factory.mktemp("models") / "long"
    checkpoint, _ = memory_checkpoint(data_directory / "tokenizer.model", max_positions=512)
    export(checkpoint, folder)
    return folder


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    """Folder with the results of `evaluate(model)`."""
    return tmp_path / "out" / "perplexity" / model.name


@pytest.fixture
def evaluate(command: Command, data_directory: Path, tmp_path: Path) -> Evaluate:
    def run(*models: Path, settings: tuple[object, ...] = LENGTHS) -> tuple[int, str, str]:
        return command("evaluate", "perplexity", *models, "--data", data_directory, *settings, "--output", tmp_path / "out")

    return run
