"""Import of a pretrained model as a starting point: checked against transformers, and described by a run's configuration."""

import logging
from pathlib import Path

from megatape.checkpoint.hashed_files import as_json, hash_file, write_file
from megatape.config import parse_config
from megatape.data.tokenizers.tokenizer import FILES
from megatape.errors import UserError, path_errors
from megatape.hf.architecture import Architecture, read_architecture
from megatape.hf.dtypes import dtype_name
from megatape.hf.folder_name import PRETRAINED, check_model_folder
from megatape.hf.importing.check import LIMIT, check_tokens, logit_difference
from megatape.hf.importing.config import starting_config
from megatape.hf.importing.record import IMPORT, ImportRecord
from megatape.hf.weights.folder_weights import FolderWeights, find_weights
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
        found = read_architecture(source)
        if found.family.remote_code:
            raise UserError(f"{source} is an export of MegaTAPE: give it to training.init_from as it is")
        weights = find_weights(source, found.model, found.family)

        raw = starting_config(found, source, out, encoding, length, dtype_name(weights.dtype))
        data = raw["data"] | {"path": "DATA"}
        training = raw["training"] | {"steps": 1000}
        config = parse_config(raw | {"data": data, "training": training}, str(source / "config.json"))

        tokens = check_tokens(source, found.model.vocab_size, min(CHECK_LENGTH, config.data.sequence_length))
        difference = logit_difference(found, weights, config.model, tokens)
        if difference > LIMIT and encoding != found.model.encoding:
            LOG.info(
                "with %s the model starts with other logits than the source's: they differ by %.1e of the largest",
                encoding,
                difference,
            )
            difference = logit_difference(found, weights, found.model, tokens)
        if not difference <= LIMIT:
            raise UserError(
                f"{source}: the logits differ from transformers' own by {difference:.1e} of the largest, more than "
                f"{LIMIT:.0e}: this model has a part that is not supported; please report it"
            )

        record = _record(source, found, weights, difference, hub)
        write_file(folder / "config.json", [as_json(raw)])
        write_file(folder / IMPORT, [as_json(record.model_dump(mode="json"))])
    return record


def _record(source: Path, found: Architecture, weights: FolderWeights, difference: float, hub: str) -> ImportRecord:
    """Describe an import, with the hashes of all files of the model."""
    tokenizer = [name for name in FILES if (source / name).is_file()]
    used = {"config.json", *tokenizer}
    used.update(record.file for record in weights.tensors.values())
    if (source / INDEX).is_file():
        used.add(INDEX)
    return ImportRecord(
        format=1,
        source=str(source),
        family=found.config.model_type,
        dtype=dtype_name(weights.dtype),
        difference=difference,
        tokenizer=tokenizer,
        model=weights.model,
        files={name: hash_file(source / name) for name in sorted(used)},
        tensors=dict(weights.tensors),
        hub=hub,
    )
