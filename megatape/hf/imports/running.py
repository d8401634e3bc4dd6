"""A pretrained model of others, run by transformers' own class."""

from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from megatape.data.tokenizers.files import load_tokenizer
from megatape.hf.architecture import read_architecture
from megatape.hf.folder_weights import find_weights
from megatape.hf.tokenizer import special_tokens


def read_imported(folder: Path) -> PreTrainedModel:
    """The model in `folder` in the precision of its weights, on the CPU. Of its generation settings only the end tokens count.

    Raises FileNotFoundError or UserError for what is missing, corrupted or not supported, as an import does.
    """
    found = read_architecture(folder)
    weights, dtype = find_weights(folder, found)
    with no_init_weights():
        model = found.family.model_class._from_config(found.theirs, dtype=getattr(torch, dtype))
    model.tie_weights()
    parameters = dict(model.named_parameters())
    for ours, record in weights.tensors.items():
        parameters[record.name].data.copy_(weights.tensor(ours))
    special = special_tokens(load_tokenizer(folder))
    model.generation_config = GenerationConfig(
        bos_token_id=special.bos, eos_token_id=special.eos, pad_token_id=special.pad, do_sample=False
    )
    return model.eval()
