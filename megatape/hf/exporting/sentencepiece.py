"""Converts SentencePiece BPE models to tokenizer.json, with the same ids for every text.

transformers' converter changes ids, so tokenizer.json is built here:

* SentencePiece merges the adjacent pair whose union is the piece with the best score, leftmost first. tokenizer.json ranks
  pairs instead: all ways to split a piece into two pieces get the piece's rank. Control and byte pieces never merge.
* SentencePiece writes a space as U+2581. In tokenizer.json, pieces contain the space itself. A U+2581 in the text matches no
  piece and falls back to bytes, as in training (megatape/data/tokenizers/sentencepiece.py).
* `<s>` and `</s>` written in a text are ordinary text. tokenizer.json lists no added tokens, and split_special_tokens in
  tokenizer_config.json keeps transformers from matching the tokens that it adds itself.
"""

import tokenizers
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]
from tokenizers import Regex, decoders, normalizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from megatape.data.tokenizers.byte_tokens import byte_decoders
from megatape.data.tokenizers.sentencepiece import SPACE_MARK
from megatape.data.tokenizers.tokenizer import SENTENCEPIECE_FILE, Tokenizer
from megatape.errors import UserError

_Kind = ModelProto.SentencePiece


def read_proto(tokenizer: Tokenizer) -> ModelProto:
    """Read the SentencePiece model of a tokenizer.

    Raises:
        UserError: tokenizer.json does not support a part of the model. The message names the part.
    """
    proto = ModelProto.FromString(tokenizer.files[SENTENCEPIECE_FILE])
    trainer = proto.trainer_spec
    normalizer = proto.normalizer_spec
    other_pieces = []
    merged_scores = []
    for piece in proto.pieces:
        if piece.type in (_Kind.USER_DEFINED, _Kind.UNUSED):
            other_pieces.append(piece.piece)
        if piece.type == _Kind.NORMAL and len(piece.piece) > 1:
            merged_scores.append(piece.score)
    reasons = {
        "it is not of type BPE": trainer.model_type != trainer.BPE,
        "it has no byte fallback": not trainer.byte_fallback,
        "it normalizes text": bool(normalizer.precompiled_charsmap),
        "it removes extra whitespace": normalizer.remove_extra_whitespaces,
        "it does not escape whitespace": not normalizer.escape_whitespaces,
        "it puts whitespace at the end of words": trainer.treat_whitespace_as_suffix,
        f"it has user-defined or unused pieces {other_pieces[:3]}": bool(other_pieces),
        "two merged pieces have the same score": len(set(merged_scores)) != len(merged_scores),
        "it has no <unk>, <s> or </s>": min(trainer.unk_id, trainer.bos_id, trainer.eos_id) < 0,
    }
    for reason, applies in reasons.items():
        if applies:
            raise UserError(
                f"{tokenizer.origin}: {reason}, so tokenizer.json could not give the same ids: prepare the data with the "
                "tokenizer.json of the same model if it has one, or train the tokenizer with `megatape data tokenizer`"
            )
    return proto


def build_tokenizer(proto: ModelProto) -> tokenizers.Tokenizer:
    """Build the tokenizer for a SentencePiece model read by `read_proto`. It puts `<s>` before each text."""
    vocabulary = {piece.piece.replace(SPACE_MARK, " "): index for index, piece in enumerate(proto.pieces)}
    begin_id = proto.trainer_spec.bos_id
    begin = proto.pieces[begin_id].piece
    unknown = proto.pieces[proto.trainer_spec.unk_id].piece
    tokenizer = tokenizers.Tokenizer(BPE(vocabulary, _merges(proto), unk_token=unknown, byte_fallback=True))
    decoding = byte_decoders()
    if proto.normalizer_spec.add_dummy_prefix:
        # Add a space at the beginning and after each U+2581, unless nothing or another U+2581 follows, because training encodes
        # the parts between U+2581 one by one.
        tokenizer.normalizer = normalizers.Replace(Regex(rf"(?:\A|(?<={SPACE_MARK}))(?=[^{SPACE_MARK}])"), " ")
        decoding.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(decoding)
    tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A $B", special_tokens=[(begin, begin_id)]
    )
    return tokenizer


def _merges(proto: ModelProto) -> list[tuple[str, str]]:
    """Return the pairs of pieces to merge, best first."""
    scores = {}
    for piece in proto.pieces:
        if piece.type == _Kind.NORMAL:
            scores[piece.piece.replace(SPACE_MARK, " ")] = piece.score

    merges = []
    for text in sorted(scores, key=lambda text: -scores[text]):
        for cut in range(1, len(text)):
            if text[:cut] in scores and text[cut:] in scores:
                merges.append((text[:cut], text[cut:]))
    return merges
