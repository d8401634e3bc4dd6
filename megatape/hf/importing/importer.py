"""Imports a pretrained model: checks it against transformers, and writes a record and the configuration of a run."""

import logging
from pathlib import Path

from megatape.checkpoint.format.hashed_files import as_json, hash_file, write_file
from megatape.config import ModelConfig, parse_config
from megatape.data.tokenizers.tokenizer import FILES
from megatape.errors import UserError, path_errors
from megatape.hf.dtypes import dtype_name
from megatape.hf.folder_name import PRETRAINED, check_model_folder
from megatape.hf.importing.check import LIMIT, check_tokens, logit_difference
from megatape.hf.importing.config import starting_config
from megatape.hf.importing.record import IMPORT, ImportRecord
from megatape.hf.pretrained import PretrainedModel, read_pretrained
from megatape.hf.weights.tensor_headers import INDEX
from megatape.utils.files.atomic import new_folder

LOG = logging.getLogger(__name__)

# Maximum number of tokens for comparing logits.
CHECK_LENGTH = 256


@path_errors()
def import_model(source: Path, out: Path, encoding: str, length: int | None, hub_id: str | None = None) -> ImportRecord:
    """Import a model: check its logits, and write config.json and import.json.

    Args:
        source: Folder of the model.
        out: Folder to write. It must not exist.
        encoding: Position encoding to train with.
        length: Tokens per sample, None for the default.
        hub_id: Id on the Hugging Face hub, if the model was downloaded from there.

    Raises:
        FileExistsError: `out` exists.
        FileNotFoundError, UserError: A file is missing, the model is not supported, or MegaTAPE computes other logits.
    """
    check_model_folder(source, PRETRAINED)
    source = source.absolute()
    with new_folder(out) as folder:
        pretrained = read_pretrained(source)
        if pretrained.architecture.family.remote_code:
            raise UserError(f"{source} is an export of MegaTAPE: give it to training.init_from as it is")

        dtype = dtype_name(pretrained.weights.dtype)
        raw = starting_config(pretrained.architecture, out, encoding, length, dtype)
        # Fill in the settings that the user has to add, so that the rest can be checked.
        data = raw["data"] | {"path": "DATA"}
        training = raw["training"] | {"steps": 1000}
        config = parse_config(raw | {"data": data, "training": training}, str(source / "config.json"))

        difference = _check_logits(source, pretrained, config.model, config.data.sequence_length)
        record = _describe_import(source, pretrained, difference, hub_id)
        write_file(folder / "config.json", [as_json(raw)])
        write_file(folder / IMPORT, [as_json(record.model_dump(mode="json"))])
    return record


def _check_logits(source: Path, pretrained: PretrainedModel, model: ModelConfig, sample_length: int) -> float:
    """Check that MegaTAPE computes the same logits as transformers.

    Args:
        source: Folder of the model.
        pretrained: Pretrained model.
        model: Model section to train. If its encoding changes the logits, the pretrained model's encoding is checked instead.
        sample_length: Tokens per sample.

    Returns:
        Largest difference between logits, relative to the largest logit.

    Raises:
        UserError: The logits differ by more than LIMIT.
    """
    theirs = pretrained.architecture.model
    tokens = check_tokens(source, theirs.vocab_size, min(CHECK_LENGTH, sample_length))
    difference = logit_difference(pretrained, model, tokens)
    if difference > LIMIT and model.encoding != theirs.encoding:
        LOG.info(
            "with %s the model starts with other logits than the source's: they differ by %.1e of the largest",
            model.encoding,
            difference,
        )
        difference = logit_difference(pretrained, theirs, tokens)
    if not difference <= LIMIT:
        raise UserError(
            f"{source}: the logits differ from transformers' own by {difference:.1e} of the largest, more than "
            f"{LIMIT:.0e}: this model has a part that is not supported; please report it"
        )
    return difference


def _describe_import(source: Path, pretrained: PretrainedModel, difference: float, hub_id: str | None) -> ImportRecord:
    """Return an import's record, with the hashes of all model files."""
    architecture, weights = pretrained
    tokenizer = [name for name in FILES if (source / name).is_file()]
    files = {"config.json", *tokenizer}
    files.update(record.file for record in weights.tensors.values())
    if (source / INDEX).is_file():
        files.add(INDEX)
    return ImportRecord(
        format=1,
        source=str(source),
        family=architecture.config.model_type,
        dtype=dtype_name(weights.dtype),
        difference=difference,
        tokenizer=tokenizer,
        model=weights.model,
        files={name: hash_file(source / name) for name in sorted(files)},
        tensors=dict(weights.tensors),
        hub=hub_id or "",
    )
