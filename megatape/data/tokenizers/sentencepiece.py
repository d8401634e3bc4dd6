"""SentencePiece tokenizers: their training, such that every text is reproduced exactly, and their use."""

import io
import re
from collections.abc import Iterable
from itertools import chain

import numpy as np
import sentencepiece

from megatape.data.tokenizers.tokenizer import SENTENCEPIECE_FILE, Tokenizer
from megatape.errors import UserError

MAX_TRAINING_BYTES = 20_000_000
# Fixed, because the trainer records it in the model file, which must be the same on every machine.
TRAINER_THREADS = 2
# The trainer drops "sentences" of more than 4192 bytes; a character has at most 4.
MAX_LINE_CHARACTERS = 1000
SPACE_MARK = "\u2581"  # SentencePiece's own sign for a space


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, max_training_bytes: int = MAX_TRAINING_BYTES, byte_fallback: bool = True
) -> bytes:
    """Train a tokenizer. The same texts give the same bytes.

    Args:
        texts: To train on.
        vocab_size: Number of tokens.
        max_training_bytes: Of the texts in UTF-8; the rest of them is not read.
        byte_fallback: Have a token for each byte, so that any text can be encoded.

    Returns:
        The bytes of the model file.

    Raises:
        UserError: The texts do not suffice for `vocab_size`, or need a larger one.
    """
    lines = _training_lines(texts, max_training_bytes)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            byte_fallback=byte_fallback,
            split_digits=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            allow_whitespace_only_pieces=True,  # one token for an indentation
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=-1,
            num_threads=TRAINER_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2]  # after the place in its own code; it says which sizes there can be
        raise UserError(
            f"SentencePiece cannot train {vocab_size} tokens on {len(lines)} lines: {reason} Give more text or another size"
        ) from error
    return model.getvalue()


def character_tokenizer(alphabet: str) -> "SentencePieceTokenizer":
    """256 byte tokens, three control tokens and the alphabet: no merges, so every character is one token."""
    return SentencePieceTokenizer(train_tokenizer([alphabet], 256 + 3 + len(alphabet)))


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model file. Raises UserError if the bytes are not such a model or the model lacks </s>."""

    def __init__(self, model: bytes, origin: str = "tokenizer model") -> None:
        super().__init__({SENTENCEPIECE_FILE: model}, origin)
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            remedy = "copy the file again or train a tokenizer"
            if re.match(rb"[\w+/]+=* \d+\n", model):
                remedy = "it is a file of tiktoken, which `megatape data tiktoken` makes a tokenizer.json of"
            raise UserError(f"{origin}: not a SentencePiece model: {remedy}") from error
        self.vocab_size = self._processor.get_piece_size()
        self.bos_id = None if self._processor.bos_id() < 0 else self._processor.bos_id()
        self.eos_id = self._processor.eos_id()
        if self.eos_id < 0:
            raise UserError(
                f"{origin}: it has no </s>, and documents need a token to end with: use a model that was trained with it"
            )
        # As byte tokens the mark decodes to itself; SentencePiece alone would decode it as a space.
        self._mark_ids = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE_MARK.encode()]

    def encode(self, text: str) -> list[int]:
        ids = self._processor.encode(text.split(SPACE_MARK))
        return ids[0] + [token for part in ids[1:] for token in self._mark_ids + part]

    def encode_documents(self, texts: list[str]) -> list[np.ndarray]:
        threads = -1 if self.num_threads is None else self.num_threads
        documents = self._processor.encode(
            texts, out_type="numpy", add_bos=self.bos_id is not None, add_eos=True, num_threads=threads
        )
        for number, text in enumerate(texts):
            if SPACE_MARK in text:
                (documents[number],) = super().encode_documents([text])
        return documents

    def decode(self, ids: Iterable[int]) -> str:
        return self._processor.decode([int(token) for token in ids])

    def piece(self, token: int) -> str | None:
        return self._processor.id_to_piece(token) if token < self.vocab_size else None

    def pieces(self) -> list[str]:
        """The text of each token in the model file."""
        return [self._processor.id_to_piece(token) for token in range(self.vocab_size)]

    def control_pieces(self) -> list[str]:
        """Texts of the tokens that no document gives, such as </s>."""
        processor = self._processor
        return [
            piece for token, piece in enumerate(self.pieces()) if processor.is_control(token) or processor.is_unknown(token)
        ]


def _training_lines(texts: Iterable[str], max_bytes: int) -> list[str]:
    """The lines of the texts, long ones cut, up to `max_bytes` in all."""
    lines = []
    bytes_left = max_bytes
    for line in chain.from_iterable(text.split("\n") for text in texts):
        for begin in range(0, len(line), MAX_LINE_CHARACTERS):
            lines.append(line[begin : begin + MAX_LINE_CHARACTERS])
            bytes_left -= len(lines[-1].encode())
            if bytes_left <= 0:
                return lines
    return lines
