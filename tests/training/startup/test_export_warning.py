"""Warnings when a run starts."""

from pathlib import Path
from typing import Any

import pytest

from megatape.config import parse_config
from megatape.imports import import_given
from megatape.training.startup.export_warning import export_warning

FILE = """
from megatape.config import OptimizerConfig
from megatape.encodings.encoding import Encoding
from megatape.registry import ENCODINGS, EncodingEntry


class Own(Encoding):
    {body}


class Options(OptimizerConfig):
    pass


ENCODINGS["own"] = EncodingEntry(f"{{__name__}}:Own", "own")
"""


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize(
    ("body", "warning"),
    [
        ("pass", None),
        (
            "defaults = OptimizerConfig",
            "this model can be trained, but not exported or evaluated: {path}, line 2: megatape.config.OptimizerConfig is not",
        ),
    ],
)
def test_a_run_says_whether_its_model_can_be_exported(
    raw_config: dict[str, Any], tmp_path: Path, body: str, warning: str | None
) -> None:
    """The warning comes before training, when moving the encoding to its own file costs nothing."""
    path = tmp_path / "with_options.py"
    path.write_text(FILE.format(body=body))
    import_given(str(path))
    raw_config["model"]["encoding"] = "own"
    config = parse_config(raw_config, "test")
    text = export_warning(config.model, config.export.family)
    if warning is None:
        assert text is None
        return
    assert text is not None
    assert text.startswith(warning.format(path=path))


def test_models_of_this_package_need_no_check(raw_config: dict[str, Any]) -> None:
    config = parse_config(raw_config, "test")
    assert export_warning(config.model, config.export.family) is None
