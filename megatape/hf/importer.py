"""A pretrained model of others as a starting point: checked, run by both codes, and described in our terms.

MegaTAPE's code must give the logits of transformers' own. An import is also a checkpoint at step 0, so that it is exported
without a training step.
"""

import logging
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor
from transformers.initialization import no_init_weights

from megatape.accounting.counts import meta_model
from megatape.checkpoint.manifest import FileRecord, as_json, describe, write_file
from megatape.config import Config, ModelConfig, load_config, parse_config
from megatape.data.tokenizers.tokenizer import FILES, Tokenizer
from megatape.errors import UserError, content_errors, path_errors
from megatape.hf.architecture import Architecture, read_architecture
from megatape.hf.dtypes import dtype_name
from megatape.hf.folder_name import PRETRAINED, check_model_folder
from megatape.hf.folder_weights import FolderWeights, find_weights
from megatape.hf.import_record import IMPORT, ImportRecord, open_import
from megatape.hf.lora import without_adapters
from megatape.hf.tensor_headers import INDEX
from megatape.imports import given
from megatape.model.build import build_model
from megatape.model.init import initial_weight
from megatape.registry import ENCODINGS
from megatape.utils.files import new_folder

LOG = logging.getLogger(__name__)
LENGTH = 4096  # of samples, unless the model or the user says otherwise
TEXT_LENGTH = 256  # of the text, if samples are not shorter
# Float32 rounding, which grows with the depth; 4e-7 in small models. Wrong frequencies of Llama 3 give 6e-3, a lost bias 1.
LIMIT = 1e-4
# Settings that a user adds to an import's config.json before training, and that no export depends on.
PLACEHOLDERS = ("data.path=DATA", "data.mixture={}", "training.steps=1000")


@path_errors()
def import_model(source: Path, out: Path, encoding: str, length: int | None, hub: str = "") -> ImportRecord:
    """Write config.json and import.json into the new folder `out` for the model in `source`.

    The model is to be trained with this encoding on samples of `length` tokens. hub: its id on the Hugging Face hub, if it was
    downloaded from there.

    Raises FileExistsError, FileNotFoundError or UserError for what is missing, not supported, or gives other logits.
    """
    check_model_folder(source, PRETRAINED)
    source = source.absolute()
    with new_folder(out) as folder:
        found = read_architecture(source)
        if found.family.remote_code:
            raise UserError(f"{source} is an export of MegaTAPE: give it to training.init_from as it is")
        weights = find_weights(source, found.model, found.family)
        raw = starting_config(found, source, out, encoding, length, dtype_name(weights.dtype))
        missing = {"data": raw["data"] | {"path": "DATA"}, "training": raw["training"] | {"steps": 1000}}
        config = parse_config(raw | missing, str(source / "config.json"))
        tokens = check_tokens(source, found.model.vocab_size, min(TEXT_LENGTH, config.data.sequence_length))
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
        record = _record(source, found, weights, difference).model_copy(update={"hub": hub})
        write_file(folder / "config.json", [as_json(raw)])
        write_file(folder / IMPORT, [as_json(record.model_dump(mode="json"))])
    return record


def starting_config(
    found: Architecture, source: Path, out: Path, encoding: str, length: int | None, dtype: str
) -> dict[str, Any]:
    """The configuration of a run that starts from this model, but for its data and steps.

    The recipe is that of the paper's context extension. Raises UserError if the model attends to fewer tokens than a sample
    has.
    """
    longest = min(found.model.max_positions, found.window or found.model.max_positions)
    usual = length or min(found.model.max_positions, LENGTH)
    length = length or min(longest, LENGTH)
    if found.window is not None and found.window < length:
        raise UserError(
            f"{source / 'config.json'}: sliding_window is {found.window}, shorter than the sequence length {length}: attention "
            f"to the last tokens only is not supported, give `length` {found.window} or less"
        )
    if length < usual:
        LOG.info("attention window of %d tokens: samples have %d, not %d", found.window, length, usual)
    model = found.model.model_dump(exclude_none=True) | {"encoding": encoding}
    export = {"dtype": dtype}
    del model["position_size"]  # follows from the encoding
    if encoding == found.model.encoding:
        export["family"] = found.config.model_type
    elif model.pop("sliding_window", None):
        LOG.info("the attention window is not kept: with %s a token attends to all before it", encoding)
    if not ENCODINGS[encoding].scalable and model.pop("scaling", None):
        LOG.info("the scaling of rotary frequencies is not kept: %s has none of these", encoding)
    if "sliding_window" in model:
        longest = found.model.max_positions
    model["max_positions"] = max(longest, length)
    return {
        "run": {"directory": str(out / "run")} | ({"imports": list(given())} if given() else {}),
        "model": model,
        "data": {"sequence_length": length},
        "training": {
            "init_from": str(out.absolute()),
            "global_batch_size": 64,
            "micro_batch_size": 1,
            "precision": "float32" if dtype == "float32" else "bfloat16",
            "activation_checkpointing": "full",
        },
        "optimizer": {"learning_rate": 2e-5, "weight_decay": 0.0},
        "schedule": {"kind": "constant", "warmup_fraction": 0.05},
        "export": export,
    }


def _record(source: Path, found: Architecture, weights: FolderWeights, difference: float) -> ImportRecord:
    tokenizer = [name for name in FILES if (source / name).is_file()]
    used = {"config.json", *tokenizer, *(record.file for record in weights.tensors.values())}
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
        files={name: FileRecord(**describe(source / name)) for name in sorted(used)},
        tensors=dict(weights.tensors),
    )


def check_tokens(folder: Path, vocab_size: int, length: int) -> Tensor:
    """At most `length` ids [1, N] of a text, this file, by the folder's tokenizer.json.

    Without a tokenizer.json, ids from all over the vocabulary.

    Raises UserError if tokenizer.json is corrupted or another model's.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return torch.randint(vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
    with content_errors(f"{path}: not a tokenizer", "copy the folder again", Exception):  # tokenizers raises nothing else
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    ids = tokenizer.encode(Path(__file__).read_text(encoding="utf-8")).ids[:length]
    if max(ids) >= vocab_size:
        raise UserError(
            f"{path} gives a text the id {max(ids)}, but the model's vocab_size is {vocab_size}: they are not of one model"
        )
    return torch.tensor([ids])


@torch.no_grad()
def logit_difference(found: Architecture, weights: FolderWeights, model: ModelConfig, tokens: Tensor) -> float:
    """The largest difference of the logits [1, N, V] of both codes, in float32, relative to the largest logit.

    model: the section to be trained, whose position weights start as in training. Both share one copy of the weights in
    memory.
    """
    with no_init_weights():
        theirs = found.family.model_class._from_config(found.config, dtype=torch.float32)
    theirs.tie_weights()
    left = dict(theirs.named_parameters())
    ours = build_model(model)
    for name, parameter in ours.named_parameters():
        if name not in weights.tensors:
            parameter.data = initial_weight(name, parameter, model.init_std, seed=0)
            continue
        parameter.data = left.pop(weights.tensors[name].name).data = weights.tensor(name)
    assert not left, f"parameters of {type(theirs).__name__} without a counterpart: {list(left)}"
    expected = theirs.eval()(tokens).logits
    logits = ours.eval()(tokens, torch.arange(tokens.shape[1]).expand_as(tokens))
    return float((logits - expected).abs().max() / expected.abs().max())


class ImportCheckpoint:
    """The weights with which a run of an import's configuration begins, as megatape.hf.checkpoint_source.Checkpoint.

    New adapters add nothing at step 0, so they are left out.

    Args:
        directory: Folder of the import.
        config: Configuration of the run, by default the import's own.

    Raises:
        MissingPath, UserError: The import is incomplete or corrupted, or its configuration describes another model.
    """

    step = tokens = 0

    def __init__(self, directory: Path, config: Config | None = None) -> None:
        self.directory = directory
        self._weights = open_import(directory)
        self.config = without_adapters(config or load_config(directory / "config.json", PLACEHOLDERS))
        self._weights.check_fits(self.config.model)
        self._parameters = dict(meta_model(self.config.model).named_parameters())

    def verify(self) -> None:
        """Compare all files of the source with their hashes. Raises UserError or MissingPath."""
        self._weights.verify()

    def names(self) -> list[str]:
        """Names of all parameters."""
        return list(self._parameters)

    def tensor(self, name: str) -> Tensor:
        """A weight of the source, or the initial value of one that the source lacks, in float32."""
        if name in self._weights.tensors:
            return self._weights.tensor(name)
        return initial_weight(name, self._parameters[name], self.config.model.init_std, self.config.training.seed)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the source. Raises UserError if it has none."""
        return self._weights.tokenizer()
