"""Exports a checkpoint to a folder that transformers loads."""

from functools import partial
from pathlib import Path

from transformers import GenerationConfig

from megatape.config import Config, ModelConfig
from megatape.config.sections.run import Dtype
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError, path_errors
from megatape.hf.adapters.lora import merged_weight
from megatape.hf.exporting.model_card import TrainingSummary, model_card
from megatape.hf.exporting.origins import origins_of
from megatape.hf.exporting.tokenizer import describe_tokenizer, write_tokenizer
from megatape.hf.families import family_of
from megatape.hf.families.exported_model import ExportedModel
from megatape.hf.special_tokens import special_tokens
from megatape.hf.weights.checkpoint import Checkpoint, check_parameters
from megatape.hf.weights.model_weights import parameter_shapes
from megatape.hf.weights.weight_files import SHARD_BYTES, write_weights
from megatape.utils.files.atomic import new_folder


@path_errors()
def export(
    checkpoint: Checkpoint,
    out: Path,
    merge: bool = True,
    shard_bytes: int = SHARD_BYTES,
    model: ModelConfig | None = None,
    dtype: Dtype | None = None,
) -> None:
    """Export a model for transformers: weights, configuration, code, tokenizer, generation settings and model card.

    Args:
        checkpoint: Checkpoint to export.
        out: Folder to write. It must not exist, and has a temporary name until it is complete.
        merge: Whether to merge LoRA adapters into the weights. Otherwise they are dropped.
        shard_bytes: Maximum size of a weight file with several tensors.
        model: Model section that replaces the checkpoint's, e.g. to scale RoPE frequencies. The weights must fit.
        dtype: Precision of the stored weights, by default the run's.

    Raises:
        FileExistsError: `out` exists.
        FileNotFoundError, UserError: The checkpoint cannot be exported.
    """
    with new_folder(out) as folder:
        config = _exported_config(checkpoint.config, model, dtype)
        check_parameters(checkpoint, config.model)
        tokenizer = _fitting_tokenizer(checkpoint, config.model)
        special = special_tokens(tokenizer)
        exported = ExportedModel.of_run(config, special)
        family = family_of(exported.model, config.export.family)

        read = checkpoint.tensor
        lora = config.model.lora
        if merge and lora is not None:
            read = partial(merged_weight, checkpoint, lora)
        write_weights(folder, parameter_shapes(exported.model), exported.dtype, read, family.parameter_name, shard_bytes)

        family.config(exported).save_pretrained(folder)
        GenerationConfig(**special._asdict(), do_sample=False).save_pretrained(folder)
        write_tokenizer(tokenizer, exported.model.max_positions, folder)
        family.write_code(exported.model, folder)

        training = TrainingSummary(checkpoint.step, checkpoint.tokens, config.training.init_from, config.data.samples)
        origins = origins_of(config.training.init_from, config.data.paths)
        card = model_card(exported, family, training, describe_tokenizer(tokenizer), origins)
        (folder / "README.md").write_text(card, encoding="utf-8")


def _exported_config(config: Config, model: ModelConfig | None, dtype: Dtype | None) -> Config:
    """Return a run's configuration with another model section or export precision."""
    if model is not None:
        config = config.model_copy(update={"model": model})
    if dtype is not None:
        export_section = config.export.model_copy(update={"dtype": dtype})
        config = config.model_copy(update={"export": export_section})
    return config


def _fitting_tokenizer(checkpoint: Checkpoint, model: ModelConfig) -> Tokenizer:
    """Open the tokenizer of a checkpoint. Raises UserError if it has more tokens than the model."""
    tokenizer = checkpoint.tokenizer()
    if tokenizer.vocab_size > model.vocab_size:
        raise UserError(
            f"{tokenizer.origin} has {tokenizer.vocab_size} tokens, but model.vocab_size is {model.vocab_size}: "
            "the checkpoint holds another run's tokenizer, put the right one there"
        )
    return tokenizer
