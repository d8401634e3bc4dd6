"""Records of imports. An import is a folder that refers to a transformers model in another folder.

import.json     path of the model, hashes of its files, location of each parameter
config.json     configuration of a run, except for data and steps
"""

from pathlib import Path
from typing import Literal

from megatape.checkpoint.format.records import FileRecord, TensorRecord
from megatape.config import ModelConfig, Section
from megatape.config.sections.run import Dtype
from megatape.errors import MissingPath, content_errors
from megatape.hf.dtypes import dtype_named
from megatape.hf.weights.folder_weights import FolderWeights
from megatape.utils.files.json_files import read_json
from megatape.utils.files.paths import FileName
from megatape.utils.values.validation import as_type

IMPORT = "import.json"


class ImportRecord(Section):
    """Content of import.json.

    Attributes:
        format: Version of the file.
        source: Folder of the model.
        family: model_type in its config.json.
        dtype: Precision of the weights, float32 if it varies.
        difference: Largest difference between our logits and those of transformers, relative to the largest logit.
        tokenizer: Names of the tokenizer files in `source`.
        model: Model section of the pretrained model.
        files: File name in `source` -> size and hash, for all files of the model.
        tensors: Parameter -> location of its weight.
        hub: Id on the Hugging Face hub if the import downloaded the model, else "".
    """

    format: Literal[1]
    source: str
    family: str
    dtype: Dtype
    difference: float
    tokenizer: list[FileName]
    model: ModelConfig
    files: dict[FileName, FileRecord]
    tensors: dict[str, TensorRecord]
    hub: str = ""


def read_record(directory: Path) -> ImportRecord:
    """Read the record of an import.

    Raises:
        FileNotFoundError: The folder has no record.
        UserError: The record is corrupted.
    """
    path = directory / IMPORT
    with content_errors(f"{path}: not what `megatape import` writes", "import the model again"):
        return as_type(read_json(path), ImportRecord)


def open_import(directory: Path) -> FolderWeights:
    """Open the weights that an import refers to. Hashes are not checked until `verify` is called.

    Raises:
        FileNotFoundError: The record is missing, or the folder that it refers to.
        UserError: The record is corrupted.
    """
    record = read_record(directory)
    source = Path(record.source)
    if not source.is_dir():
        raise MissingPath(
            f"{directory / IMPORT} refers to {source}, which is not there: put it back, or import the model again from where "
            "it is"
        )
    return FolderWeights(source, record.model, dtype_named(record.dtype), record.tensors, record.files)
