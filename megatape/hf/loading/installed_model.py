"""Loads models into the installed class of their family, checking each config.json field and each tensor.

No code from the folder is run, and nothing is downloaded. from_pretrained would load whatever the folder refers to: code,
adapters, kernels, repositories.
"""

from pathlib import Path

from transformers import GenerationConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from megatape.data.tokenizers.files import json_tokenizer
from megatape.data.tokenizers.tokenizer import JSON_FILE
from megatape.errors import UserError
from megatape.hf.config_json import CONFIG_ERRORS, error_summary
from megatape.hf.pretrained import read_pretrained
from megatape.hf.special_tokens import special_tokens


def read_model(folder: Path) -> PreTrainedModel:
    """Load a model on the CPU, in the precision of its weights. Of its generation settings, only special tokens are used.

    Raises:
        FileNotFoundError, UserError: A file is missing, corrupted or not supported.
    """
    architecture, weights = read_pretrained(folder)
    try:
        with no_init_weights():
            model: PreTrainedModel = architecture.family.model_class._from_config(architecture.config, dtype=weights.dtype)
    except CONFIG_ERRORS as error:
        raise UserError(f"{folder / 'config.json'}: {error_summary(error)}") from None
    model.tie_weights()
    parameters = dict(model.named_parameters())
    for name, location in weights.tensors.items():
        parameters[location.name].data.copy_(weights.tensor(name))
    special = special_tokens(json_tokenizer(folder / JSON_FILE))
    model.generation_config = GenerationConfig(**special._asdict(), do_sample=False)
    return model.eval()
