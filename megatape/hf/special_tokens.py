"""Control tokens of a model, in transformers' terms."""

from typing import NamedTuple

from megatape.data.tokenizers.huggingface import JsonTokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.hf.exporting.sentencepiece import read_proto


class SpecialTokens(NamedTuple):
    """Ids of the control tokens, named as in transformers' configurations. None: the tokenizer has no such token.

    Our tokenizers pad with `<unk>`, which byte fallback never produces, so that no trained token doubles as padding. Padding
    with the end token would be a mistake: fine-tuning masks padding out of the loss, and thereby the real ends of documents.

    Attributes:
        bos_token_id: Token at the beginning of documents.
        eos_token_id: Token or tokens that end a text.
        pad_token_id: Padding token.
    """

    bos_token_id: int | None
    eos_token_id: int | list[int]
    pad_token_id: int | None


def special_tokens(tokenizer: Tokenizer) -> SpecialTokens:
    """Return the control token ids of an exported model. Raises UserError if the tokenizer cannot be exported."""
    if isinstance(tokenizer, JsonTokenizer):
        ends: int | list[int] = tokenizer.stop_ids
        if len(tokenizer.stop_ids) == 1:
            ends = tokenizer.stop_ids[0]
        pad_id = None
        pad = tokenizer.special_token("pad")
        if pad is not None:
            pad_id = tokenizer.token_id(pad)
        return SpecialTokens(tokenizer.bos_id, ends, pad_id)
    trainer = read_proto(tokenizer).trainer_spec
    return SpecialTokens(trainer.bos_id, trainer.eos_id, trainer.unk_id)
