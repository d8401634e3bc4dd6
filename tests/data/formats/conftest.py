"""Importing token files by the command, and files without end tokens."""

import shutil
from pathlib import Path

import pytest

from megatape.data.formats.megatron import Megatron
from megatape.data.tokenizers.tokenizer import Tokenizer
from tests.helpers.data.token_files import DOCUMENTS, IDS, CommandResult, Import
from tests.helpers.processes.command import Command


@pytest.fixture
def import_data(tokenizer: Tokenizer, tmp_path: Path, command: Command) -> Import:
    """import_data(format, path, ...): import a file or folder with a tokenizer of 320 ids, half of it for validation.

    Checks that the output exists if and only if the command succeeds.
    """
    tokenizer_file = tmp_path / "tokenizer.model"
    tokenizer_file.write_bytes(tokenizer.files["tokenizer.model"])
    folder = tmp_path / "out"

    def run(form: str, path: Path, *options: object) -> CommandResult:
        shutil.rmtree(folder, ignore_errors=True)
        words = ["data", "import", "--format", form, "--input", path, "--tokenizer", tokenizer_file, "--output", folder]
        result = CommandResult(*command(*words, "--validation-share", 0.5, *options))
        assert result.status in (0, 2)
        assert folder.exists() == (result.status == 0)
        return result

    return run


@pytest.fixture
def bare_documents(tmp_path: Path) -> Path:
    """Return a Megatron-LM file with DOCUMENTS, without begin and end tokens. One of the four is empty."""
    Megatron().write(tmp_path / "bare", (ids[1:-1] for ids in DOCUMENTS), IDS)
    return tmp_path / "bare"
