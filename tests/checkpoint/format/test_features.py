"""Features of the checkpoint format: which ones are written, and how checkpoints of other versions are read."""

import json
from pathlib import Path
from typing import Any

import pytest

from megatape.checkpoint.format.features import EARLIER_FORMATS, FEATURES_FORMAT, PLAIN_FORMAT, Feature, earlier_features
from megatape.checkpoint.format.hashed_files import write_file
from megatape.checkpoint.format.manifest import MANIFEST, load_manifest, save_manifest
from megatape.checkpoint.format.records import BaseRecord
from megatape.errors import CheckpointError, UserError
from tests.helpers.runs.manifests import BASE, rewrite


def save(folder: Path, *features: Feature) -> dict[str, Any]:
    """Write a checkpoint with these features. Return its manifest."""
    files = {"a": write_file(folder / "a", [b"first"])}
    tensors = {"weight": {"w": "a"}}
    if Feature.EMA in features:
        tensors["ema"] = {"w": "a"}
    base = None
    if Feature.BASE in features:
        base = BaseRecord.model_validate(BASE)
    save_manifest(folder, files, tensors, base, [feature for feature in features if feature not in ("base", "ema")])
    content: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    return content


def test_a_checkpoint_without_features_is_one_that_earlier_versions_read(tmp_path: Path) -> None:
    written = save(tmp_path)
    assert written["format"] == PLAIN_FORMAT
    assert written["features"] == []
    assert load_manifest(tmp_path).tensors == {"weight": {"w": "a"}}


@pytest.mark.parametrize("features", [*([feature] for feature in Feature), list(Feature)])
def test_features_are_listed_and_keep_earlier_versions_out(tmp_path: Path, features: list[Feature]) -> None:
    """Earlier versions read the formats 1 to 5, and refuse every other number."""
    written = save(tmp_path, *features)
    assert max(EARLIER_FORMATS) < FEATURES_FORMAT
    assert written["format"] == FEATURES_FORMAT
    assert written["features"] == sorted(features)
    assert load_manifest(tmp_path).features == tuple(sorted(features))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"format": 6, "features": ["ema", "sharded_tokenizer"]}, "has the feature sharded_tokenizer, which this version of"),
        ({"format": 7, "features": []}, "checkpoint format 7, this version of MegaTAPE reads 1 to 6"),
        ({"format": 0, "features": []}, "checkpoint format 0, this version of MegaTAPE reads 1 to 6"),
        # The content of a checkpoint with an unknown feature may look wrong to this version.
        ({"format": 6, "features": ["other_tensors"], "tensors": []}, "has the feature other_tensors"),
    ],
)
def test_an_unknown_feature_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], error: str) -> None:
    written = save(tmp_path)
    rewrite(tmp_path / MANIFEST, written | changes)
    with pytest.raises(CheckpointError, match=error) as raised:
        load_manifest(tmp_path)
    assert "use the version that wrote the checkpoint, or a newer one" in str(raised.value)


@pytest.mark.parametrize("version", EARLIER_FORMATS)
def test_formats_of_earlier_versions_are_read(tmp_path: Path, version: int) -> None:
    written = save(tmp_path, *EARLIER_FORMATS[version])
    del written["features"]
    rewrite(tmp_path / MANIFEST, written | {"format": version})
    assert load_manifest(tmp_path).format == version


@pytest.mark.parametrize(
    ("features", "version", "error"),
    [
        ([], 2, "format 2 without a base"),
        ([], 4, "format 4 without an average of weights"),
        ([Feature.BASE], 1, "format 1 with a base"),
        ([Feature.EMA], 1, "format 1 with an average of weights"),
        ([Feature.EMA], 5, "format 5 with an average of weights"),
        ([], 6, "format 6 without features"),
    ],
)
def test_formats_of_earlier_versions_must_fit_their_content(
    tmp_path: Path, features: list[Feature], version: int, error: str
) -> None:
    written = save(tmp_path, *features)
    del written["features"]
    rewrite(tmp_path / MANIFEST, written | {"format": version})
    with pytest.raises(UserError, match=error):
        load_manifest(tmp_path)


def test_later_formats_could_have_a_base() -> None:
    """Format 2 always has one."""
    assert earlier_features(2, has_base=False) == {Feature.BASE}
    assert earlier_features(2, has_base=True) == {Feature.BASE}
    assert earlier_features(3, has_base=False) == {Feature.SKIPPED_STEPS}
    assert earlier_features(4, has_base=True) == {Feature.EMA, Feature.BASE}
