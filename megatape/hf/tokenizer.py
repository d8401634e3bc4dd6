"""The tokenizer of an exported folder: an imported one file for file, a SentencePiece BPE model converted.

The converted files, which transformers' AutoTokenizer reads, give the same ids for every text. transformers' own conversion
changes ids, so tokenizer.json is built here. What SentencePiece does and how it is said:

* It merges, of all adjacent pairs, the one whose union is the piece with the best score, leftmost first. tokenizer.json
  ranks pairs instead: all ways to split a piece into two pieces get the piece's rank. Control and byte pieces never merge.
* Its pieces write a space as U+2581. Here they hold the space itself, so that a U+2581 in the text is no piece and falls
  back to bytes, as it does in training (megatape/data/tokenizers/sentencepiece.py).
* `<s>` and `</s>` written out in a text are text. tokenizer.json lists no added tokens, and split_special_tokens in
  tokenizer_config.json keeps transformers from matching the ones it adds itself.
"""

import json
from pathlib import Path
from typing import NamedTuple

import tokenizers
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]
from tokenizers import Regex, decoders, normalizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from megatape.data.tokenizers.byte_tokens import byte_decoders
from megatape.data.tokenizers.huggingface import JsonTokenizer
from megatape.data.tokenizers.sentencepiece import SPACE_MARK
from megatape.data.tokenizers.tokenizer import GENERATION_FILE, SENTENCEPIECE_FILE, Tokenizer
from megatape.errors import UserError

_Kind = ModelProto.SentencePiece


class SpecialTokens(NamedTuple):
    """Ids of the control tokens: what documents begin with, what ends a text, and padding. None: there is none.

    Named as in transformers' configurations.

    The padding of our own tokenizers is unknown: byte fallback never produces it, so no trained token is lost to padding. The
    end token would be a bad choice: fine-tuning masks padding out of the loss, and with it the real ends of documents.
    """

    bos_token_id: int | None
    eos_token_id: int | list[int]
    pad_token_id: int | None


def special_tokens(tokenizer: Tokenizer) -> SpecialTokens:
    """Ids of the control tokens of an exported model. Raises UserError if the tokenizer cannot be exported."""
    if isinstance(tokenizer, JsonTokenizer):
        stops = tokenizer.stop_ids
        pad = tokenizer.special_token("pad")
        return SpecialTokens(
            tokenizer.bos_id, stops if len(stops) > 1 else stops[0], None if pad is None else tokenizer.token_id(pad)
        )
    trainer = read_proto(tokenizer).trainer_spec
    return SpecialTokens(trainer.bos_id, trainer.eos_id, trainer.unk_id)


def write_tokenizer(tokenizer: Tokenizer, max_length: int, folder: Path) -> None:
    """Write the files of the tokenizer into `folder`. The eos ids of generation_config.json are in `special_tokens`.

    max_length: positions the language model is meant for; beyond it transformers warns of a tokenizer of ours.
    Raises UserError if the tokenizer cannot be exported.
    """
    if isinstance(tokenizer, JsonTokenizer):
        for name in tokenizer.files.keys() - {GENERATION_FILE}:
            (folder / name).write_bytes(tokenizer.files[name])
        return
    proto = read_proto(tokenizer)
    build_tokenizer(proto).save(str(folder / "tokenizer.json"))
    trainer = proto.trainer_spec
    settings = {
        "tokenizer_class": "TokenizersBackend",
        "bos_token": proto.pieces[trainer.bos_id].piece,
        "eos_token": proto.pieces[trainer.eos_id].piece,
        "unk_token": proto.pieces[trainer.unk_id].piece,
        "pad_token": proto.pieces[trainer.unk_id].piece,
        "padding_side": "left",
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
    }
    text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def describe_tokenizer(tokenizer: Tokenizer) -> str:
    """A paragraph for the model card."""
    if isinstance(tokenizer, JsonTokenizer):
        begin = "with their text" if tokenizer.bos_id is None else f"with `{tokenizer.piece(tokenizer.bos_id)}`"
        return (
            "The tokenizer's files are those of the model that this one was trained from. Training documents began\n"
            f"{begin} and ended with `{tokenizer.piece(tokenizer.eos_id)}`.\n"
            "Special tokens written out in a text were text, as with\n"
            "`AutoTokenizer.from_pretrained(folder, split_special_tokens=True)`."
        )
    return (
        "The tokenizer puts `<s>` in front of a text, as every training document had it, and does not add\n"
        "`</s>`. Batches are padded on the left, with `<unk>`."
    )


def read_proto(tokenizer: Tokenizer) -> ModelProto:
    """The SentencePiece model of a tokenizer, if tokenizer.json can say exactly what it does.

    Else ValueError says what it cannot.
    """
    proto = ModelProto.FromString(tokenizer.files[SENTENCEPIECE_FILE])
    trainer = proto.trainer_spec
    normalizer = proto.normalizer_spec
    pieces = [piece.piece for piece in proto.pieces if piece.type in (_Kind.USER_DEFINED, _Kind.UNUSED)]
    merged = [piece.score for piece in proto.pieces if piece.type == _Kind.NORMAL and len(piece.piece) > 1]
    faults = {
        "it is not of type BPE": trainer.model_type != trainer.BPE,
        "it has no byte fallback": not trainer.byte_fallback,
        "it normalizes text": bool(normalizer.precompiled_charsmap),
        "it removes extra whitespace": normalizer.remove_extra_whitespaces,
        "it does not escape whitespace": not normalizer.escape_whitespaces,
        "it puts whitespace at the end of words": trainer.treat_whitespace_as_suffix,
        f"it has user-defined or unused pieces {pieces[:3]}": bool(pieces),
        "two merged pieces have the same score": len(set(merged)) != len(merged),
        "it has no <unk>, <s> or </s>": min(trainer.unk_id, trainer.bos_id, trainer.eos_id) < 0,
    }
    for fault, present in faults.items():
        if present:
            raise UserError(
                f"{tokenizer.origin}: {fault}, so tokenizer.json could not give the same ids: prepare the data with the "
                "tokenizer.json of the same model if it has one, or train the tokenizer with `megatape data tokenizer`"
            )
    return proto


def build_tokenizer(proto: ModelProto) -> tokenizers.Tokenizer:
    """The tokenizer of a checked model: `<s> text` to ids, and ids to text."""
    vocabulary = {piece.piece.replace(SPACE_MARK, " "): index for index, piece in enumerate(proto.pieces)}
    unknown = proto.pieces[proto.trainer_spec.unk_id].piece
    begin = proto.pieces[proto.trainer_spec.bos_id].piece
    tokenizer = tokenizers.Tokenizer(BPE(vocabulary, _merges(proto), unk_token=unknown, byte_fallback=True))
    decoding = byte_decoders()
    if proto.normalizer_spec.add_dummy_prefix:
        # A space before the text and after each U+2581, unless nothing or another U+2581 follows: training encodes the
        # parts between them one by one.
        tokenizer.normalizer = normalizers.Replace(Regex(rf"(?:\A|(?<={SPACE_MARK}))(?=[^{SPACE_MARK}])"), " ")
        decoding.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(decoding)
    tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A $B", special_tokens=[(begin, proto.trainer_spec.bos_id)]
    )
    return tokenizer


def _merges(proto: ModelProto) -> list[tuple[str, str]]:
    """Pairs of pieces that merge, best first."""
    scores = {piece.piece.replace(SPACE_MARK, " "): piece.score for piece in proto.pieces if piece.type == _Kind.NORMAL}
    return [
        (piece[:cut], piece[cut:])
        for piece in sorted(scores, key=lambda piece: -scores[piece])
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
