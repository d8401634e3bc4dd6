"""A training checkpoint as a folder that transformers loads."""

from functools import partial
from pathlib import Path

from transformers import GenerationConfig

from megatape.errors import UserError, path_errors
from megatape.hf.checkpoint_source import Checkpoint, check_parameters, parameter_shapes, stored_dtype
from megatape.hf.families import family_of
from megatape.hf.folder_weights import write_weights
from megatape.hf.lora import merged_weight, without_adapters
from megatape.hf.model_card import model_card
from megatape.hf.origins import origins_of
from megatape.hf.tokenizer import describe_tokenizer, special_tokens, write_tokenizer
from megatape.utils.files import new_folder


@path_errors()
def export(checkpoint: Checkpoint, out: Path, merge: bool = True) -> None:
    """Write weights, configuration, code, tokenizer, generation settings and model card into the new folder `out`.

    merge: merge LoRA's adapters into the weights instead of leaving them out. The folder appears only when it is complete,
    under a temporary name until then. Raises FileExistsError if it exists, FileNotFoundError or UserError for a checkpoint
    that cannot be exported.
    """
    with new_folder(out) as folder:
        check_parameters(checkpoint)
        config = without_adapters(checkpoint.config)
        tokenizer = checkpoint.tokenizer()
        if tokenizer.vocab_size > config.model.vocab_size:
            raise UserError(
                f"{tokenizer.origin} has {tokenizer.vocab_size} tokens, but model.vocab_size is {config.model.vocab_size}: "
                "the checkpoint holds another run's tokenizer, put the right one there"
            )
        special = special_tokens(tokenizer)
        family = family_of(config)
        exported = family.config(config, special)
        read = partial(merged_weight, checkpoint) if merge else checkpoint.tensor
        write_weights(folder, parameter_shapes(config.model), stored_dtype(config), read, family.parameter_name)
        exported.save_pretrained(folder)
        GenerationConfig(**special._asdict(), do_sample=False).save_pretrained(folder)
        write_tokenizer(tokenizer, config.model.max_positions, folder)
        family.write_code(config.model, folder)
        card = model_card(config, family, checkpoint.step, checkpoint.tokens, describe_tokenizer(tokenizer), origins_of(config))
        (folder / "README.md").write_text(card, encoding="utf-8")
