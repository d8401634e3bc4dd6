"""Tokenizers of pretrained models, and a function preparing records."""

from pathlib import Path

import pytest

from tests.helpers.data.examples import prepare  # noqa: F401 (a fixture)
from tests.helpers.data.sources import no_hub  # noqa: F401 (a fixture)
from tests.helpers.models.imported import FAMILIES


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tokenizers of pretrained models."""
    root = tmp_path_factory.mktemp("adopted")
    return {name: write(root / name) for name, write in FAMILIES.items()}
