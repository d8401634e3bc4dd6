"""Loading of trained models from every kind of folder that holds one.

No code in a folder of transformers runs, and nothing is downloaded. from_pretrained would follow what the folder names: code,
adapters, kernels, repositories. So the installed classes are filled from config.json, tokenizer.json and the safetensors files,
and every field and tensor is checked.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers.decoders import Decoder
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.initialization import no_init_weights

from megatape.checkpoint.reader import verified_checkpoint
from megatape.config import ModelConfig
from megatape.data.tokenizers.byte_tokens import REPLACEMENT
from megatape.data.tokenizers.files import json_tokenizer
from megatape.data.tokenizers.huggingface import decoding_by
from megatape.data.tokenizers.tokenizer import JSON_FILE
from megatape.errors import MissingPath, UserError, path_errors
from megatape.hf.adapters.merge import merge_adapter
from megatape.hf.architecture import FAULTS, reason
from megatape.hf.exporting.exporter import export
from megatape.hf.exporting.tokenizer import special_tokens
from megatape.hf.loading.loaded_model import LoadedModel
from megatape.hf.model_folder import open_model_folder
from megatape.hf.pretrained import read_pretrained

# Files of a model in addition to its weights.
FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")


def read_model(folder: Path) -> PreTrainedModel:
    """Load a model on the CPU, in the precision of its weights. It runs by the installed class of its family.

    Only the special tokens of its generation settings are used.

    Args:
        folder: Folder of the model.

    Raises:
        FileNotFoundError, UserError: Something is missing, corrupted or not supported.
    """
    architecture, weights = read_pretrained(folder)
    try:
        with no_init_weights():
            model: PreTrainedModel = architecture.family.model_class._from_config(architecture.config, dtype=weights.dtype)
    except FAULTS as error:
        raise UserError(f"{folder / 'config.json'}: {reason(error)}") from None
    model.tie_weights()
    parameters = dict(model.named_parameters())
    for name, location in weights.tensors.items():
        parameters[location.name].data.copy_(weights.tensor(name))
    special = special_tokens(json_tokenizer(folder / JSON_FILE))
    model.generation_config = GenerationConfig(**special._asdict(), do_sample=False)
    return model.eval()


class ExactTokenizer(PreTrainedTokenizerFast):  # type: ignore[misc]
    """Tokenizer that keeps valid characters beside a stray byte token.

    Attributes:
        exact_decoder: Decoder for texts with replacement characters; None if the tokenizer's own decoder is exact.
    """

    exact_decoder: Decoder | None = None

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> Any:
        """Return the text of token ids, or the texts of a batch. See PreTrainedTokenizerFast."""
        found = super().decode(token_ids, skip_special_tokens, **options)
        texts = found
        if isinstance(found, str):
            texts = [found]
        if self.exact_decoder is None or not any(REPLACEMENT in text for text in texts):
            return found
        with decoding_by(self.backend_tokenizer, self.exact_decoder):
            return super().decode(token_ids, skip_special_tokens, **options)


def read_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a model. It gives the ids of training: special tokens in a text are text.

    Args:
        folder: Folder of the model.

    Raises:
        FileNotFoundError, UserError: A file is missing or corrupted.
    """
    tokenizer = json_tokenizer(folder / JSON_FILE)
    begin = None
    if tokenizer.bos_id is not None:
        begin = tokenizer.piece(tokenizer.bos_id)
    max_length = tokenizer.declared.get("model_max_length")
    if type(max_length) is not int:
        max_length = None
    loaded = ExactTokenizer(
        tokenizer_object=tokenizer.backend,
        bos_token=begin,
        eos_token=tokenizer.piece(tokenizer.eos_id),
        unk_token=tokenizer.special_token("unk"),
        pad_token=tokenizer.special_token("pad"),
        add_bos_token=begin is not None,
        add_eos_token=False,
        padding_side="left",
        model_max_length=max_length,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )
    loaded.exact_decoder = tokenizer.exact_decoder
    return loaded


@path_errors()
def load_exported(folder: Path, trust_remote_code: bool = False) -> LoadedModel:
    """Load a model from an export or another folder of transformers, on the GPU if there is one.

    Args:
        folder: Folder of the model.
        trust_remote_code: Whether transformers loads the model, running the Python files in the folder. Nothing is downloaded
            either way.

    Raises:
        FileNotFoundError, UserError: A file is missing or not supported, or a tensor is missing, unexpected or not finite.
    """
    for file in FILES:
        if not (folder / file).is_file():
            raise MissingPath(f"{folder}: no {file}: give a folder that `megatape export` wrote")
    model: Any
    tokenizer: Any
    if trust_remote_code:
        model = _load_remote_model(folder)
        tokenizer = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=True, local_files_only=True, split_special_tokens=True
        )
    else:
        model = read_model(folder)
        tokenizer = read_tokenizer(folder)

    num_tokens = len(tokenizer)
    vocab_size = model.config.vocab_size
    if num_tokens > vocab_size:
        raise UserError(f"{folder}: its tokenizer has {num_tokens} tokens, its model {vocab_size}: they are not of one export")
    device = "cpu"
    if torch.cuda.is_available():
        device = "cuda"
    return LoadedModel(str(folder), model.to(device).eval(), tokenizer, folder)


def _load_remote_model(folder: Path) -> Any:
    """Load a model by transformers, running the code in its folder."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, local_files_only=True, use_safetensors=True, output_loading_info=True
    )
    model, info = loaded
    for fault in ("missing_keys", "unexpected_keys"):
        names = sorted(info[fault])
        if names:
            raise UserError(
                f"{folder}: {fault.replace('_', ' ')} in its weights: {', '.join(names[:3])}: copy the folder again"
            )
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise UserError(f"{folder}: tensor {name} has values that are NaN or infinite: copy the folder again")
    return model


@contextmanager
def load_trained(
    folder: Path,
    model: ModelConfig | None = None,
    trust_remote_code: bool = False,
    base: Path | None = None,
    adapter: Path | None = None,
) -> Iterator[LoadedModel]:
    """Load a model from any kind of model folder. Files are verified by the hashes that are on record.

    A checkpoint is exported to a temporary folder. An import stands for the model that it refers to.

    Args:
        folder: Folder of the model.
        model: Model configuration that replaces the checkpoint's own, e.g. to scale RoPE frequencies. The weights must fit.
        trust_remote_code: See `load_exported`.
        base: Present folder of a checkpoint's base if it was moved.
        adapter: Exported adapter to merge into the model, see `merge_adapter`.

    Raises:
        FileNotFoundError, UserError: Something is missing, corrupted or not supported.
    """
    opened = open_model_folder(folder, base)
    name = str(folder)
    files = opened.files
    with TemporaryDirectory() as temporary:
        if opened.kind == "checkpoint":
            checkpoint = verified_checkpoint(folder, base)
            files = Path(temporary) / f"export_{checkpoint.step}"
            export(checkpoint, files, model=model)
        elif opened.kind == "import":
            opened.weights().verify()
        if adapter is not None:
            name = f"{folder} with {adapter}"
            merged = Path(temporary) / "merged"
            merge_adapter(adapter, files, merged)
            files = merged
        loaded = load_exported(files, trust_remote_code)
        loaded.name = name
        yield loaded
