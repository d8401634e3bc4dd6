"""Trained models ready to run, from every kind of folder that holds one.

A folder of transformers is data only: no code in it runs, nothing is downloaded. from_pretrained would follow what the folder
names: code, adapters, kernels, repositories. So the installed classes are filled from config.json, tokenizer.json and the
safetensors files, and every key and tensor is checked.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers.decoders import Decoder
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.initialization import no_init_weights

from megatape.checkpoint.reader import verified_checkpoint
from megatape.config import ModelConfig
from megatape.data.tokenizers.byte_tokens import REPLACEMENT
from megatape.data.tokenizers.files import json_tokenizer
from megatape.data.tokenizers.huggingface import JsonTokenizer, decoding_by
from megatape.data.tokenizers.tokenizer import JSON_FILE
from megatape.errors import MissingPath, UserError, path_errors
from megatape.hf.adapter_merge import merge_adapter
from megatape.hf.architecture import FAULTS, read_architecture, reason
from megatape.hf.export import export
from megatape.hf.folder_weights import find_weights
from megatape.hf.model_folder import open_model_folder
from megatape.hf.tokenizer import special_tokens


def read_model(folder: Path) -> PreTrainedModel:
    """The model in `folder` in the precision of its weights, run by the installed class of its family, on the CPU.

    Of its generation settings only the special tokens count.

    Raises FileNotFoundError or UserError for what is missing, corrupted or not supported.
    """
    found = read_architecture(folder)
    weights = find_weights(folder, found.model, found.family)
    try:
        with no_init_weights():
            model: PreTrainedModel = found.family.model_class._from_config(found.config, dtype=weights.dtype)
    except FAULTS as error:
        raise UserError(f"{folder / 'config.json'}: {reason(error)}") from None
    model.tie_weights()
    parameters = dict(model.named_parameters())
    for name, record in weights.tensors.items():
        parameters[record.name].data.copy_(weights.tensor(name))
    special = special_tokens(json_tokenizer(folder / JSON_FILE))
    model.generation_config = GenerationConfig(**special._asdict(), do_sample=False)
    return model.eval()


class ExactTokenizer(PreTrainedTokenizerFast):  # type: ignore[misc]
    """A tokenizer that keeps valid characters beside a stray byte token.

    Attributes:
        exact_decoder: Decoder for texts with replacement characters; None if the tokenizer's own decoder is exact.
    """

    exact_decoder: Decoder | None = None

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> Any:
        """Return the text of token ids, or the texts of a batch. See PreTrainedTokenizerFast."""
        found = super().decode(token_ids, skip_special_tokens, **options)
        texts = [found] if isinstance(found, str) else found
        if self.exact_decoder is None or not any(REPLACEMENT in text for text in texts):
            return found
        with decoding_by(self.backend_tokenizer, self.exact_decoder):
            return super().decode(token_ids, skip_special_tokens, **options)


def read_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer in `folder`, with the ids of training: special tokens in a text are text, and texts begin as documents did.

    Raises FileNotFoundError or UserError for a missing or corrupted file.
    """
    tokenizer = json_tokenizer(folder / JSON_FILE)
    limit = tokenizer.declared.get("model_max_length")
    loaded = ExactTokenizer(
        tokenizer_object=tokenizer.backend,
        bos_token=None if tokenizer.bos_id is None else tokenizer.piece(tokenizer.bos_id),
        eos_token=tokenizer.piece(tokenizer.eos_id),
        unk_token=tokenizer.special_token("unk"),
        pad_token=tokenizer.special_token("pad"),
        add_bos_token=tokenizer.bos_id is not None,
        add_eos_token=False,
        padding_side="left",
        model_max_length=limit if type(limit) is int else None,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )
    loaded.exact_decoder = tokenizer.exact_decoder
    return loaded


@dataclass
class LoadedModel:
    """A model, ready to generate.

    Attributes:
        name: Where it comes from.
        model: Of transformers.
        tokenizer: Of transformers.
        folder: The files, while `load_trained` holds them.
    """

    name: str
    model: Any
    tokenizer: Any
    folder: Path = Path()

    def text_tokenizer(self) -> JsonTokenizer:
        """The tokenizer as training reads it, with its chat template. Raises UserError."""
        tokenizer = json_tokenizer(self.folder / JSON_FILE)
        tokenizer.origin = self.name  # not the temporary folder of a checkpoint
        return tokenizer

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return int(self.model.config.vocab_size)

    @property
    def max_positions(self) -> int:
        """The longest text in tokens."""
        return int(self.model.config.max_position_embeddings)

    def check_length(self, num_tokens: int) -> None:
        """Raise UserError if the encoding draws a different position for each token and has too few for so many."""
        encoding = getattr(self.model.base_model, "encoding", None)
        most = encoding.positions(random_offset=False).drawn_from if encoding else 0
        if 0 < most < num_tokens:
            raise UserError(f"{self.name} draws from {most} positions, too few for a text of {num_tokens} tokens: shorten it")

    @torch.no_grad()
    def logits(self, tokens: Tensor) -> Tensor:
        """Float32 [B, N, V] of ids [B, N], where the model is. Raises UserError as check_length does."""
        self.check_length(tokens.shape[1])
        logits: Tensor = self.model(input_ids=tokens.to(self.model.device), use_cache=False).logits
        return logits.float()

    def continuations(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """The likeliest `num_tokens` ids, one by one, after each prompt; fewer where the model ends the text.

        All prompts must have the same number of ids, so that nothing is padded.
        """
        tokens = torch.tensor(prompts, device=self.model.device)
        output = self.model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=num_tokens, do_sample=False)
        return output[:, tokens.shape[1] :].tolist()


@path_errors()
def load_exported(folder: Path, trust_remote_code: bool = False) -> LoadedModel:
    """The model in an export or in a folder of transformers, run by the installed classes, on the GPU if there is one.

    Args:
        folder: it.
        trust_remote_code: hand the folder to transformers instead, which runs the Python files in it.
            Nothing is downloaded either way.

    Raises:
        FileNotFoundError, UserError: if it is no such model, or a tensor is missing, unexpected or not
            finite.
    """
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        if not (folder / file).is_file():
            raise MissingPath(f"{folder}: no {file}: give a folder that `megatape export` wrote")
    model, tokenizer = _load_remote(folder) if trust_remote_code else (read_model(folder), read_tokenizer(folder))
    if len(tokenizer) > model.config.vocab_size:
        raise UserError(
            f"{folder}: its tokenizer has {len(tokenizer)} tokens, its model {model.config.vocab_size}: they are not of one "
            "export"
        )
    return LoadedModel(str(folder), model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer, folder)


def _load_remote(folder: Path) -> tuple[Any, Any]:
    """Model and tokenizer by transformers, which runs the code of the folder."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, local_files_only=True, use_safetensors=True, output_loading_info=True
    )
    model, info = loaded
    for fault in ("missing_keys", "unexpected_keys"):
        if names := sorted(info[fault]):
            raise UserError(
                f"{folder}: {fault.replace('_', ' ')} in its weights: {', '.join(names[:3])}: copy the folder again"
            )
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise UserError(f"{folder}: tensor {name} has values that are NaN or infinite: copy the folder again")
    return model, AutoTokenizer.from_pretrained(
        folder, trust_remote_code=True, local_files_only=True, split_special_tokens=True
    )


@contextmanager
def load_trained(
    folder: Path,
    model: ModelConfig | None = None,
    trust_remote_code: bool = False,
    base: Path | None = None,
    adapter: Path | None = None,
) -> Iterator[LoadedModel]:
    """The model in a folder of any kind that open_model_folder knows. Files are compared with the hashes that they have.

    A checkpoint is exported to a temporary folder; an import stands for the model that it refers to.

    Args:
        folder: it.
        model: of a checkpoint, instead of its own; one that has the same weights, such as one with
            scaled frequencies.
        trust_remote_code: as load_exported takes it.
        base: of a checkpoint, as CheckpointReader takes it.
        adapter: an exported adapter to merge into the model, as merge_adapter takes it.

    Raises:
        FileNotFoundError, UserError: for what is missing, corrupted or not supported.
    """
    opened = open_model_folder(folder, base)
    name = str(folder)
    files = opened.files
    with TemporaryDirectory() as temporary:
        if opened.kind == "checkpoint":
            checkpoint = verified_checkpoint(folder, base)
            if model is not None:
                checkpoint.config = checkpoint.config.model_copy(update={"model": model})
            files = Path(temporary) / f"export_{checkpoint.step}"
            export(checkpoint, files)
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
