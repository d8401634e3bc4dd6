"""Tokenizers of exports: an imported tokenizer is copied, a SentencePiece BPE model is converted.

The converted files, which transformers' AutoTokenizer reads, give the same ids for every text. transformers' own conversion
changes ids, so tokenizer.json is built here:

* SentencePiece merges the adjacent pair whose union is the piece with the best score, leftmost first. tokenizer.json ranks
  pairs instead: all ways to split a piece into two pieces get the piece's rank. Control and byte pieces never merge.
* Pieces of SentencePiece write a space as U+2581. Here they contain the space itself. A U+2581 in the text is no piece and
  falls back to bytes, as in training (megatape/data/tokenizers/sentencepiece.py).
* `<s>` and `</s>` written out in a text are text. tokenizer.json lists no added tokens, and split_special_tokens in
  tokenizer_config.json keeps transformers from matching the ones that it adds itself.
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
    """Ids of the control tokens, named as in transformers' configurations. None stands for a missing token.

    Our own tokenizers pad with `<unk>`: byte fallback never produces it, so padding takes no trained token away. The end token
    would be a bad choice: fine-tuning masks padding out of the loss, and with it the real ends of documents.

    Attributes:
        bos_token_id: Token at the beginning of a document.
        eos_token_id: Token or tokens that end a text.
        pad_token_id: Token for padding.
    """

    bos_token_id: int | None
    eos_token_id: int | list[int]
    pad_token_id: int | None


def special_tokens(tokenizer: Tokenizer) -> SpecialTokens:
    """Return the ids of the control tokens of an exported model. Raises UserError if the tokenizer cannot be exported."""
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


def write_tokenizer(tokenizer: Tokenizer, max_length: int, folder: Path) -> None:
    """Write the files of a tokenizer. The end tokens of generation_config.json are in `special_tokens`.

    Args:
        tokenizer: Tokenizer to export.
        max_length: Number of positions that the model is made for. transformers warns about longer texts.
        folder: Folder to write into.

    Raises:
        UserError: The tokenizer cannot be exported.
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
    """Return the paragraph about a tokenizer in the model card."""
    if isinstance(tokenizer, JsonTokenizer):
        begin = "with their text"
        if tokenizer.bos_id is not None:
            begin = f"with `{tokenizer.piece(tokenizer.bos_id)}`"
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
    """Read the SentencePiece model of a tokenizer.

    Raises:
        UserError: tokenizer.json cannot express what it does. The message says which part.
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
    faults = {
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
    for fault, present in faults.items():
        if present:
            raise UserError(
                f"{tokenizer.origin}: {fault}, so tokenizer.json could not give the same ids: prepare the data with the "
                "tokenizer.json of the same model if it has one, or train the tokenizer with `megatape data tokenizer`"
            )
    return proto


def build_tokenizer(proto: ModelProto) -> tokenizers.Tokenizer:
    """Build the tokenizer of a SentencePiece model from `read_proto`. It begins each text with `<s>`."""
    vocabulary = {piece.piece.replace(SPACE_MARK, " "): index for index, piece in enumerate(proto.pieces)}
    begin_id = proto.trainer_spec.bos_id
    begin = proto.pieces[begin_id].piece
    unknown = proto.pieces[proto.trainer_spec.unk_id].piece
    tokenizer = tokenizers.Tokenizer(BPE(vocabulary, _merges(proto), unk_token=unknown, byte_fallback=True))
    decoding = byte_decoders()
    if proto.normalizer_spec.add_dummy_prefix:
        # Add a space before the text and after each U+2581, unless nothing or another U+2581 follows: training encodes the
        # parts between them one by one.
        tokenizer.normalizer = normalizers.Replace(Regex(rf"(?:\A|(?<={SPACE_MARK}))(?=[^{SPACE_MARK}])"), " ")
        decoding.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(decoding)
    tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A $B", special_tokens=[(begin, begin_id)]
    )
    return tokenizer


def _merges(proto: ModelProto) -> list[tuple[str, str]]:
    """Return the pairs of pieces that merge, best first."""
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
