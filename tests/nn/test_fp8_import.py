"""Importing torchao for FP8 layers, with or without the package."""

import logging
import sys

import pytest
import torch

from megatape.errors import UserError
from megatape.nn.fp8 import fp8_linear_function


def test_disabled_logs_stay_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchao's warnings are disabled while it is imported. Afterwards, the caller's own setting holds again."""
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    logging.disable(logging.ERROR)
    try:
        with pytest.raises(UserError, match="torchao cannot be imported"):
            fp8_linear_function("rowwise", torch.device("cpu"))
        assert not logging.getLogger("caller").isEnabledFor(logging.ERROR)
    finally:
        logging.disable(logging.NOTSET)
