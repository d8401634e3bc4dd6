"""What makes a folder a checkpoint: its list of files with sizes and hashes.

    checkpoints/step-00000100/
        weight-00000.safetensors ...        float32 master weights under their own names, whatever the run's topology was
        exp_avg-*.safetensors ...           each kind of the optimizer's state, AdamW's moments for example
        ema-*.safetensors ...               exponential moving average of the trained weights, of runs that keep one
        rng.safetensors                     generator state of every rank
        state.json                          step, updates, samples, tokens, resolved configuration, fingerprints
        tokenizer.model                     or tokenizer.json and its companions, of an imported tokenizer
        manifest.json                       written last: every file's size and sha256, every tensor's file, its own sha256;
                                            where frozen weights are that the checkpoint leaves out (tensors.py)

The folder is written as `step-00000100.NONCE.tmp` and renamed, so that one without a manifest is an incomplete write.
"""

import hashlib
import json
import os
import stat
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any, Self

from pydantic import ConfigDict, Field, model_validator

from megatape.config import Section
from megatape.data.tokenizers.tokenizer import FILES as TOKENIZER_FILES
from megatape.errors import CheckpointError, MissingPath, UserError, content_errors
from megatape.run_folder import RunFolder
from megatape.utils.files import (
    FileName,
    as_type,
    create_file,
    json_content,
    named_if_full,
    open_regular,
    read_json,
    write_atomically,
)

# What earlier versions read is still written as they know it. WITHOUT_STEPS: the optimizer has not taken every step, with which
# they would go on wrongly. WITH_EMA: they would lose it. AVERAGE: of several checkpoints (average.py), no step of a run.
COMPLETE, WITH_BASE, WITHOUT_STEPS, WITH_EMA, AVERAGE = FORMATS = 1, 2, 3, 4, 5
MANIFEST = "manifest.json"
STATE = "state.json"
RNG = "rng.safetensors"
ANOTHER = "use another checkpoint"  # what to do with a corrupted one


class FileRecord(Section):
    """Size and hash of a file, as `describe` gives them."""

    bytes: int
    sha256: str


class TensorRecord(Section):
    """Where a tensor is, in a file of its folder, and under which name there."""

    file: FileName
    name: str
    shape: tuple[int, ...] = Field(strict=False)  # JSON has lists


class BaseRecord(Section):
    """The entry `base` of a manifest: a folder that has weights which the checkpoint leaves out (tensors.py)."""

    folder: str
    relative: str
    files: dict[FileName, FileRecord]
    tensors: dict[str, TensorRecord]

    @model_validator(mode="after")
    def _check_tensors(self) -> Self:
        _check_listed("weight", {name: tensor.file for name, tensor in self.tensors.items()}, self.files)
        return self


class Manifest(Section):
    """The content of a manifest, but for its own hash. tensors: kind -> parameter -> file."""

    model_config = ConfigDict(extra="ignore")

    format: int
    files: dict[FileName, FileRecord]
    tensors: dict[str, dict[str, str]]
    base: BaseRecord | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.format < WITHOUT_STEPS and (self.base is not None) != (self.format == WITH_BASE):
            raise UserError(f"format {self.format} with{'out' * (self.base is None)} a base")
        if ("ema" in self.tensors) != (self.format == WITH_EMA):
            raise UserError(f"format {self.format} with{'out' * ('ema' not in self.tensors)} an average of weights")
        for kind, names in self.tensors.items():
            _check_listed(kind, names, self.files)
        return self


def _check_listed(kind: str, names: dict[str, str], files: Container[str]) -> None:
    for name, file in names.items():
        if file not in files:
            raise UserError(f"{kind} of {name} is in {file!r}, which is not among the files")


def describe(path: Path) -> dict[str, Any]:
    """Size in bytes and sha256 of a file that is there. For one that we write, `write_file` returns them."""
    with open_regular(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def write_file(path: Path, parts: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Write a file and wait until it is on disk.

    Args:
        path: File to write. It must not exist.
        parts: Content, in parts.

    Returns:
        Size in bytes and sha256, as the manifest records them. Both are computed from `parts` and not from the file, so a file
        altered in the meantime fails verification.

    Raises:
        OSError: A file or link of this name exists, or the file cannot be written.
    """
    digest = hashlib.sha256()
    size = 0
    with named_if_full(path), create_file(path) as file:
        for part in parts:
            file.write(part)
            digest.update(part)
            size += len(part)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def load_manifest(directory: Path) -> dict[str, Any]:
    """Read the manifest, and check that every listed file has the recorded size and that no checkpoint file is unlisted.

    Args:
        directory: Folder of the checkpoint.

    Returns:
        The manifest without its own hash.

    Raises:
        FileNotFoundError: The folder is not a complete checkpoint.
        UserError: The checkpoint is corrupted or has another format.
    """
    path = directory / MANIFEST
    if not directory.is_dir():
        raise MissingPath(f"{directory}: no such folder; give a checkpoint such as runs/NAME/checkpoints/step-00000100")
    if runs := RunFolder(directory).list_checkpoints():
        raise MissingPath(f"{directory} is a run, not a checkpoint; its newest checkpoint is {runs[0]}")
    if not path.exists():
        raise MissingPath(
            f"{directory}: no {MANIFEST}, so this is no complete checkpoint; give a folder such as checkpoints/step-00000100"
        )
    with content_errors(f"{path}: corrupted", ANOTHER, (ValueError, KeyError, TypeError, AttributeError)):
        manifest = read_json(path)
        version = manifest["format"]
        recorded = manifest.pop("sha256")
    if recorded != _own_hash(manifest):
        raise UserError(f"{path}: corrupted, its sha256 is not the one it records; {ANOTHER}")
    if type(version) is int and version not in FORMATS:
        raise CheckpointError(
            f"{path}: checkpoint format {version}, this version of MegaTAPE reads {FORMATS[0]} to {FORMATS[-1]}"
        )
    with content_errors(f"{path}: no manifest of MegaTAPE", ANOTHER):
        as_type(manifest, Manifest)
    for name in os.listdir(directory):
        if _is_part(name) and name not in manifest["files"]:
            raise UserError(
                f"{directory / name}: the manifest does not list it, so it does not belong to this checkpoint: remove it"
            )
    for name, entry in manifest["files"].items():
        file = directory / name
        try:
            status = file.stat()
        except FileNotFoundError:
            raise UserError(f"{file}: missing, though the manifest lists it; {ANOTHER}") from None
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{file}: a folder, a pipe or a device, no file; {ANOTHER}")
        if (size := status.st_size) != entry["bytes"]:
            raise UserError(f"{file}: {size} bytes instead of {entry['bytes']}; the checkpoint is truncated or was changed")
    return manifest


def _is_part(name: str) -> bool:
    """Whether checkpoints have files of this name: tensors, the training state or a tokenizer's file."""
    return name in (STATE, *TOKENIZER_FILES) or name.endswith(".safetensors")


def save_manifest(
    directory: Path,
    files: dict[str, Any],
    tensors: dict[str, dict[str, str]],
    base: dict[str, Any] | None = None,
    all_steps_taken: bool = True,
    is_average: bool = False,
) -> None:
    """Write the manifest.

    Args:
        directory: of the checkpoint.
        files: what `write_file` returned for each.
        tensors: kind -> parameter -> file.
        base: what `describe_base` returned, None for a checkpoint that holds all weights.
        all_steps_taken: the optimizer counts as many steps as the run.
        is_average: the weights are the average of several checkpoints.
    """
    version = (WITH_BASE if base else COMPLETE) if all_steps_taken else WITHOUT_STEPS
    version = AVERAGE if is_average else WITH_EMA if "ema" in tensors else version
    manifest: dict[str, Any] = {"format": version, "files": files, "tensors": tensors}
    if base:
        manifest["base"] = base
    write_atomically(directory / MANIFEST, as_json(manifest | {"sha256": _own_hash(manifest)}, MANIFEST))


def as_json(value: Any, name: str = "a file") -> bytes:
    """Encode a JSON file of a checkpoint.

    Args:
        value: Value to encode.
        name: Name of the file in error messages.

    Raises:
        UserError: The file would be too large or too deeply nested to be read again.
    """
    return json_content(value, name, indent=1)


def check_hashes(directory: Path, manifest: dict[str, Any], share: int = 0, shares: int = 1) -> None:
    """Hash every `shares`-th file, beginning with number `share`, so that ranks can divide the work.

    Raises UserError naming the first file whose content is not what was written.
    """
    for name in sorted(manifest["files"])[share::shares]:
        check_file(directory, manifest, name)


def check_file(directory: Path, manifest: dict[str, Any], name: str) -> None:
    """Raise UserError if the file's content is not what was written."""
    if name not in manifest["files"]:
        raise UserError(f"{directory / MANIFEST}: no manifest of a checkpoint, it does not list {name}; {ANOTHER}")
    if describe(directory / name) != manifest["files"][name]:
        raise UserError(f"{directory / name}: its sha256 is not the one in the manifest; the file was changed or is corrupted")


def _own_hash(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
