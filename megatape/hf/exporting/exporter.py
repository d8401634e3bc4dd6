"""Export of a checkpoint to a folder that transformers loads."""

from functools import partial
from pathlib import Path

from transformers import GenerationConfig

from megatape.errors import UserError, path_errors
from megatape.hf.adapters.lora import merged_weight, without_adapters
from megatape.hf.dtypes import stored_dtype
from megatape.hf.exporting.model_card import model_card
from megatape.hf.exporting.origins import origins_of
from megatape.hf.exporting.tokenizer import describe_tokenizer, special_tokens, write_tokenizer
from megatape.hf.families import family_of
from megatape.hf.weights.checkpoint_weights import Checkpoint, check_parameters
from megatape.hf.weights.model_weights import parameter_shapes
from megatape.hf.weights.weight_files import SHARD_BYTES, write_weights
from megatape.utils.atomic import new_folder


@path_errors()
def export(checkpoint: Checkpoint, out: Path, merge: bool = True, shard_bytes: int = SHARD_BYTES) -> None:
    """Write a model as transformers reads it: weights, configuration, code, tokenizer, generation settings and model card.

    Args:
        checkpoint: Checkpoint to export.
        out: Folder to write. It has a temporary name until it is complete. It must not exist.
        merge: Whether to merge LoRA adapters into the weights. Otherwise they are left out.
        shard_bytes: Maximum size of a weight file with several tensors.

    Raises:
        FileExistsError: `out` exists.
        FileNotFoundError, UserError: The checkpoint cannot be exported.
    """
    with new_folder(out) as folder:
        check_parameters(checkpoint)
        config = without_adapters(checkpoint.config)
        model = config.model
        tokenizer = checkpoint.tokenizer()
        if tokenizer.vocab_size > model.vocab_size:
            raise UserError(
                f"{tokenizer.origin} has {tokenizer.vocab_size} tokens, but model.vocab_size is {model.vocab_size}: "
                "the checkpoint holds another run's tokenizer, put the right one there"
            )

        family = family_of(config)
        read = checkpoint.tensor
        if merge:
            read = partial(merged_weight, checkpoint)
        write_weights(folder, parameter_shapes(model), stored_dtype(config), read, family.parameter_name, shard_bytes)

        special = special_tokens(tokenizer)
        family.config(config, special).save_pretrained(folder)
        GenerationConfig(**special._asdict(), do_sample=False).save_pretrained(folder)
        write_tokenizer(tokenizer, model.max_positions, folder)
        family.write_code(model, folder)

        description = describe_tokenizer(tokenizer)
        card = model_card(config, family, checkpoint.step, checkpoint.tokens, description, origins_of(config))
        (folder / "README.md").write_text(card, encoding="utf-8")
