"""Import of a pretrained model as a starting point: checked against transformers, and described by a run's configuration."""

import logging
from pathlib import Path

from megatape.checkpoint.hashed_files import as_json, hash_file, write_file
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
from megatape.utils.atomic import new_folder

LOG = logging.getLogger(__name__)

# Number of tokens of the check, if samples are not shorter.
CHECK_LENGTH = 256


@path_errors()
def import_model(source: Path, out: Path, encoding: str, length: int | None, hub: str = "") -> ImportRecord:
    """Write the import of a model: config.json and import.json.

    Args:
        source: Folder of the model.
        out: Folder to write. It must not exist.
        encoding: Position encoding to train with.
        length: Length of samples in tokens, None for the usual one.
        hub: Id on the Hugging Face hub if the model was downloaded from there, else "".

    Raises:
        FileExistsError: `out` exists.
        FileNotFoundError, UserError: Something is missing or not supported, or MegaTAPE's code gives other logits.
    """
    check_model_folder(source, PRETRAINED)
    source = source.absolute()
    with new_folder(out) as folder:
        pretrained = read_pretrained(source)
        if pretrained.architecture.family.remote_code:
            raise UserError(f"{source} is an export of MegaTAPE: give it to training.init_from as it is")

        dtype = dtype_name(pretrained.weights.dtype)
        raw = starting_config(pretrained.architecture, source, out, encoding, length, dtype)
        data = raw["data"] | {"path": "DATA"}
        training = raw["training"] | {"steps": 1000}
        config = parse_config(raw | {"data": data, "training": training}, str(source / "config.json"))

        difference = _check_logits(source, pretrained, config.model, config.data.sequence_length)
        record = _record(source, pretrained, difference, hub)
        write_file(folder / "config.json", [as_json(raw)])
        write_file(folder / IMPORT, [as_json(record.model_dump(mode="json"))])
    return record


def _check_logits(source: Path, pretrained: PretrainedModel, model: ModelConfig, sample_length: int) -> float:
    """Check that MegaTAPE's code gives the logits of transformers' own.

    Args:
        source: Folder of the model.
        pretrained: The model.
        model: Model section to be trained. If the logits differ with its encoding, the source's own encoding is checked.
        sample_length: Length of samples in tokens.

    Returns:
        Largest difference of the logits, relative to the largest logit.

    Raises:
        UserError: They differ by more than LIMIT.
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


def _record(source: Path, pretrained: PretrainedModel, difference: float, hub: str) -> ImportRecord:
    """Describe an import, with the hashes of all files of the model.

    Args:
        source: Folder of the model.
        pretrained: The model.
        difference: Largest difference of the logits.
        hub: Id on the Hugging Face hub, "" for another folder.
    """
    architecture, weights = pretrained
    tokenizer = [name for name in FILES if (source / name).is_file()]
    used = {"config.json", *tokenizer}
    used.update(record.file for record in weights.tensors.values())
    if (source / INDEX).is_file():
        used.add(INDEX)
    return ImportRecord(
        format=1,
        source=str(source),
        family=architecture.config.model_type,
        dtype=dtype_name(weights.dtype),
        difference=difference,
        tokenizer=tokenizer,
        model=weights.model,
        files={name: hash_file(source / name) for name in sorted(used)},
        tensors=dict(weights.tensors),
        hub=hub,
    )
