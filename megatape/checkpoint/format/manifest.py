"""Manifest of a checkpoint: list of its files, with sizes and hashes.

    checkpoints/step-00000100/
        weight-00000.safetensors ...        float32 master weights by parameter name, independent of the run's topology
        exp_avg-*.safetensors ...           optimizer state, one kind per file: for example AdamW's moments
        ema-*.safetensors ...               exponential moving average of the trained weights, if the run has one
        rng.safetensors                     generator state of every rank
        state.json                          step, updates, samples, tokens, resolved configuration, fingerprints
        tokenizer.model                     or tokenizer.json and its companions, for an imported tokenizer
        manifest.json                       written last: features (features.py), size and sha256 of every file, file of every
                                            tensor, folder with frozen weights that are left out (frozen_weights.py), own
                                            sha256

The folder is written as `step-00000100.NONCE.tmp` and then renamed. A folder without a manifest is an incomplete checkpoint.
"""

import hashlib
import json
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import ConfigDict, model_validator

from megatape.checkpoint.format.features import EARLIER_FORMATS, Feature, check_supported, earlier_features, format_of
from megatape.checkpoint.format.hashed_files import as_json, hash_file
from megatape.checkpoint.format.records import BaseRecord, FileRecord, check_listed
from megatape.config import Section
from megatape.config.section import JsonList
from megatape.data.tokenizers.tokenizer import FILES as TOKENIZER_FILES
from megatape.errors import MissingPath, UserError, content_errors
from megatape.run_folder import RunFolder
from megatape.utils.files.atomic import write_atomically
from megatape.utils.files.json_files import read_json
from megatape.utils.files.paths import FileName
from megatape.utils.values.validation import as_type
from megatape.zero.state.kinds import EMA

MANIFEST = "manifest.json"
STATE = "state.json"
RNG = "rng.safetensors"
# Advice for corrupted checkpoints.
ANOTHER = "use another checkpoint"


class Manifest(Section):
    """Content of a manifest, except for its own hash. Immutable.

    Attributes:
        format: Format number (checkpoint/format/features.py).
        features: Checkpoint features, or None in checkpoints of earlier versions.
        files: File name -> size and hash.
        tensors: Tensor kind -> parameter -> file name.
        base: Folder with the weights that the checkpoint leaves out, or None if it has all weights.
    """

    model_config = ConfigDict(extra="ignore")

    format: int
    features: JsonList[str] | None = None
    files: dict[FileName, FileRecord]
    tensors: dict[str, dict[str, str]]
    base: BaseRecord | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        has_base = self.base is not None
        has_ema = EMA in self.tensors
        features: Collection[str]
        if self.features is not None:
            features = self.features
            source = f"features {list(self.features)}"
        elif self.format in EARLIER_FORMATS:
            features = earlier_features(self.format, has_base)
            source = f"format {self.format}"
        else:
            raise UserError(f"format {self.format} without features")

        _check_feature(source, Feature.BASE in features, has_base, "a base")
        _check_feature(source, Feature.EMA in features, has_ema, "an average of weights")
        for kind, names in self.tensors.items():
            check_listed(kind, names, self.files)
        return self


def _check_feature(source: str, is_listed: bool, is_present: bool, what: str) -> None:
    """Raise UserError if a part of the checkpoint is listed but missing, or present but not listed."""
    if is_present and not is_listed:
        raise UserError(f"{source} with {what}")
    if is_listed and not is_present:
        raise UserError(f"{source} without {what}")


def load_manifest(directory: Path) -> Manifest:
    """Read the manifest, checking that every listed file has the recorded size and that no checkpoint file is unlisted.

    Args:
        directory: Checkpoint folder.

    Raises:
        FileNotFoundError: The folder is not a complete checkpoint.
        CheckpointError: The checkpoint has a feature that this version does not know.
        UserError: The checkpoint is corrupted.
    """
    path = directory / MANIFEST
    if not directory.is_dir():
        raise MissingPath(f"{directory}: no such folder; give a checkpoint such as runs/NAME/checkpoints/step-00000100")
    checkpoints = RunFolder(directory).list_checkpoints()
    if checkpoints:
        raise MissingPath(f"{directory} is a run, not a checkpoint; its newest checkpoint is {checkpoints[0]}")
    if not path.exists():
        raise MissingPath(
            f"{directory}: no {MANIFEST}, so this is not a complete checkpoint; give a folder such as checkpoints/step-00000100"
        )

    with content_errors(f"{path}: corrupted", ANOTHER, (ValueError, KeyError, TypeError, AttributeError)):
        content: dict[str, Any] = read_json(path)
        recorded_hash = content.pop("sha256")
    if recorded_hash != _content_hash(content):
        raise UserError(f"{path}: corrupted, its sha256 is not the one it records; {ANOTHER}")
    check_supported(path, content)
    with content_errors(f"{path} is not a manifest of MegaTAPE", ANOTHER):
        manifest = as_type(content, Manifest)

    _check_files(directory, manifest.files)
    return manifest


def _check_files(directory: Path, files: Mapping[str, FileRecord]) -> None:
    """Check the folder's file names and sizes against the manifest.

    Raises:
        UserError: A file is missing, unlisted, not a regular file, or has another size.
    """
    for name in os.listdir(directory):
        if _is_part(name) and name not in files:
            raise UserError(
                f"{directory / name}: the manifest does not list it, so it does not belong to this checkpoint: remove it"
            )
    for name, record in files.items():
        path = directory / name
        try:
            status = path.stat()
        except FileNotFoundError:
            raise UserError(f"{path}: missing, though the manifest lists it; {ANOTHER}") from None
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path}: a folder, a pipe or a device, no file; {ANOTHER}")
        if status.st_size != record.bytes:
            raise UserError(
                f"{path}: {status.st_size} bytes instead of {record.bytes}; the checkpoint is truncated or was changed"
            )


def _is_part(name: str) -> bool:
    """Whether a file with this name can be part of a checkpoint: tensors, training state or tokenizer."""
    return name == STATE or name in TOKENIZER_FILES or name.endswith(".safetensors")


def save_manifest(
    directory: Path,
    files: Mapping[str, FileRecord],
    tensors: Mapping[str, Mapping[str, str]],
    base: BaseRecord | None = None,
    features: Collection[Feature] = (),
) -> None:
    """Write the manifest.

    Args:
        directory: Checkpoint folder.
        files: File name -> size and hash.
        tensors: Tensor kind -> parameter -> file name.
        base: Folder with the weights that the checkpoint leaves out, or None if it has all weights.
        features: Checkpoint features, except for BASE and EMA, which follow from the other arguments.
    """
    present = set(features)
    if base is not None:
        present.add(Feature.BASE)
    if EMA in tensors:
        present.add(Feature.EMA)

    content: dict[str, Any] = {
        "format": format_of(present),
        "features": sorted(present),
        "files": {name: record.model_dump() for name, record in files.items()},
        "tensors": tensors,
    }
    if base is not None:
        content["base"] = base.model_dump(mode="json")
    content_hash = _content_hash(content)
    write_atomically(directory / MANIFEST, as_json(content | {"sha256": content_hash}, MANIFEST))


def check_hashes(directory: Path, manifest: Manifest, share: int = 0, num_shares: int = 1) -> None:
    """Compare the hashes of every `num_shares`-th file, starting with file `share`, so that ranks can share the work.

    Args:
        directory: Checkpoint folder.
        manifest: Checkpoint manifest.
        share: Index of the first file.
        num_shares: Number of ranks sharing the work.

    Raises:
        UserError: A file has changed. The message names the first such file.
    """
    for name in sorted(manifest.files)[share::num_shares]:
        check_file(directory, manifest, name)


def check_file(directory: Path, manifest: Manifest, name: str) -> None:
    """Raise UserError unless a file's hash is the one in the manifest."""
    if name not in manifest.files:
        raise UserError(f"{directory / MANIFEST} is not the manifest of a checkpoint: it does not list {name}; {ANOTHER}")
    if hash_file(directory / name) != manifest.files[name]:
        raise UserError(f"{directory / name}: its sha256 is not the one in the manifest; the file was changed or is corrupted")


def _content_hash(content: dict[str, Any]) -> str:
    """Return the sha256 of a manifest without its own hash."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
