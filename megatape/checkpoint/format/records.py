"""Records of files and tensors in checkpoint manifests and import records."""

from collections.abc import Container, Mapping
from typing import Self

from pydantic import Field, model_validator

from megatape.config import Section
from megatape.errors import UserError
from megatape.utils.files.paths import FileName
from megatape.zero.state.kinds import WEIGHT


class FileRecord(Section):
    """Size and hash of a file.

    Attributes:
        bytes: Size in bytes.
        sha256: Content hash, in hexadecimal.
    """

    bytes: int
    sha256: str


class TensorRecord(Section):
    """Location of a tensor.

    Attributes:
        file: File name.
        name: Tensor name in the file.
        shape: Tensor shape.
    """

    file: FileName
    name: str
    shape: tuple[int, ...] = Field(strict=False)  # A list in JSON.


class BaseRecord(Section):
    """Manifest entry `base`: folder with the weights that the checkpoint leaves out (frozen_weights.py).

    Attributes:
        folder: Absolute path.
        relative: Path relative to the checkpoint.
        files: File name -> size and hash, for every file with left-out weights.
        tensors: Parameter -> location of its weight.
    """

    folder: str
    relative: str
    files: dict[FileName, FileRecord]
    tensors: dict[str, TensorRecord]

    @model_validator(mode="after")
    def _check_tensors(self) -> Self:
        files = {name: tensor.file for name, tensor in self.tensors.items()}
        check_listed(WEIGHT, files, self.files)
        return self


def check_listed(kind: str, names: Mapping[str, str], files: Container[str]) -> None:
    """Check that tensors are in recorded files.

    Args:
        kind: Tensor kind, for the message.
        names: Tensor name -> file name.
        files: Recorded file names.

    Raises:
        UserError: A tensor is in another file.
    """
    for name, file in names.items():
        if file not in files:
            raise UserError(f"{kind} of {name} is in {file!r}, which is not among the files")
