"""DeepSpeed's log shows only errors, unless the user asks for more."""

import logging
from collections.abc import Iterator

import pytest

from megatape.commands.options import prepare_deepspeed


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("DeepSpeed")
    filters = list(logger.filters)
    yield logger
    logger.filters = filters


def test_only_errors_of_deepspeed(logger: logging.Logger) -> None:
    """The filter is set before DeepSpeed's import, which then configures the same logger."""
    prepare_deepspeed()
    from deepspeed.utils import logger as theirs

    assert theirs is logger
    for level, shown in ((logging.WARNING, False), (logging.ERROR, True)):
        assert bool(theirs.filter(theirs.makeRecord("DeepSpeed", level, "file", 1, "text", (), None))) == shown
