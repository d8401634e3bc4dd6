"""A training checkpoint as a folder that transformers loads."""

from pathlib import Path
from typing import Protocol

from torch import Tensor
from transformers import GenerationConfig

from megatape.config import Config
from megatape.data.tokenizer import Tokenizer
from megatape.files import new_folder
from megatape.hf.families import family_of
from megatape.hf.families.family import stored_dtype
from megatape.hf.model_card import model_card
from megatape.hf.tokenizer import describe_tokenizer, special_tokens, write_tokenizer
from megatape.hf.weights import write_weights
from megatape.model.accounting import meta_model


class Checkpoint(Protocol):
    """What export needs of megatape.checkpoint.reader.CheckpointReader."""

    directory: Path
    step: int
    tokens: int

    @property
    def config(self) -> Config: ...
    def names(self) -> list[str]: ...
    def tensor(self, name: str) -> Tensor: ...
    def tokenizer(self) -> Tokenizer: ...


def export(checkpoint: Checkpoint, out: Path) -> None:
    """Write weights, configuration, code, tokenizer, generation settings and model card into the new folder `out`.

    The folder appears only when it is complete, under a temporary name until then. Raises FileExistsError if it exists,
    FileNotFoundError or ValueError for a checkpoint that cannot be exported."""
    with new_folder(out) as folder:
        config = checkpoint.config
        tokenizer = checkpoint.tokenizer()
        if tokenizer.vocab_size > config.model.vocab_size:
            raise ValueError(
                f"{tokenizer.origin} has {tokenizer.vocab_size} tokens, but model.vocab_size is {config.model.vocab_size}: "
                "the checkpoint holds another run's tokenizer, put the right one there"
            )
        special = special_tokens(tokenizer)
        family = family_of(config)
        exported = family.config(config, special)
        shapes = {name: parameter.shape for name, parameter in meta_model(config.model).named_parameters()}
        if different := sorted(shapes.keys() ^ set(checkpoint.names())):
            raise ValueError(
                f"{checkpoint.directory}: its parameters are not those of its configuration; they differ in "
                f"{', '.join(different[:3])}: the checkpoint is damaged, use another one"
            )
        write_weights(folder, shapes, stored_dtype(config), checkpoint.tensor, family.parameter_name)
        exported.save_pretrained(folder)
        GenerationConfig(
            bos_token_id=special.bos, eos_token_id=special.eos, pad_token_id=special.pad, do_sample=False
        ).save_pretrained(folder)
        write_tokenizer(tokenizer, config.model.max_positions, folder)
        family.write_code(config.model, folder)
        card = model_card(config, family, checkpoint.step, checkpoint.tokens, describe_tokenizer(tokenizer))
        (folder / "README.md").write_text(card, encoding="utf-8")
