"""Checks an import by comparing MegaTAPE's logits with those of transformers."""

from pathlib import Path

import tokenizers
import torch
from torch import Tensor
from transformers.initialization import no_init_weights

from megatape.config import ModelConfig
from megatape.errors import UserError, content_errors
from megatape.hf.pretrained import PretrainedModel
from megatape.model.build import build_model
from megatape.model.init import initial_weight

# Largest allowed difference between logits, relative to the largest logit. Rounding in float32 causes 4e-7 in small models and
# more in deeper ones. Wrong rotary frequencies of Llama 3 cause 6e-3, a missing bias 1.
LIMIT = 1e-4


def check_tokens(folder: Path, vocab_size: int, length: int) -> Tensor:
    """Return token ids for the check: the text of this file, or random ids if the folder has no tokenizer.json.

    Args:
        folder: Model folder.
        vocab_size: Vocabulary size of the model.
        length: Maximum number of tokens.

    Returns:
        int64 [1, N].

    Raises:
        UserError: tokenizer.json is corrupted, or belongs to another model.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return torch.randint(vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
    # The library `tokenizers` raises no class of error but Exception.
    with content_errors(f"{path}: not a tokenizer", "copy the folder again", Exception):
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    text = Path(__file__).read_text(encoding="utf-8")
    ids = tokenizer.encode(text).ids[:length]
    if max(ids) >= vocab_size:
        raise UserError(
            f"{path} gives a text the id {max(ids)}, but the model's vocab_size is {vocab_size}: they are not of one model: "
            "copy the folder again"
        )
    return torch.tensor([ids])


@torch.no_grad()
def logit_difference(pretrained: PretrainedModel, model: ModelConfig, tokens: Tensor) -> float:
    """Compare the logits of MegaTAPE and transformers in float32. Both models share one copy of the weights.

    Args:
        pretrained: Pretrained model.
        model: Model section to train. Weights of its encoding that the pretrained model lacks are initialized as in training.
        tokens: Token ids, int64 [1, N].

    Returns:
        Largest difference between logits, relative to the largest logit.
    """
    architecture, weights = pretrained
    with no_init_weights():
        theirs = architecture.family.model_class._from_config(architecture.config, dtype=torch.float32)
    theirs.tie_weights()
    unmatched = dict(theirs.named_parameters())
    ours = build_model(model)
    for name, parameter in ours.named_parameters():
        if name in weights.tensors:
            weight = weights.tensor(name)
            counterpart = unmatched.pop(weights.tensors[name].name)
            counterpart.data = weight
        else:
            weight = initial_weight(name, parameter, model.init_std, seed=0)
        parameter.data = weight
    assert not unmatched, f"parameters of {type(theirs).__name__} without a counterpart: {list(unmatched)}"

    expected = theirs.eval()(tokens).logits
    position_ids = torch.arange(tokens.shape[1]).expand_as(tokens)
    logits = ours.eval()(tokens, position_ids)
    difference = (logits - expected).abs().max() / expected.abs().max()
    return float(difference)
