"""SentencePiece tokenizers. Those trained here decode every text exactly."""

import io
import re
from collections.abc import Iterable

import numpy as np
import sentencepiece

from megatape.data.tokenizers.tokenizer import SENTENCEPIECE_FILE, Tokenizer
from megatape.errors import UserError

MAX_TRAINING_BYTES = 20_000_000
# Constant, because the trainer records it in the model file, which must be the same on every machine.
TRAINER_THREADS = 2
# The trainer drops "sentences" longer than 4192 bytes. A character takes up to 4 bytes.
MAX_LINE_CHARACTERS = 1000
# Character by which SentencePiece represents a space.
SPACE_MARK = "\u2581"
NUM_BYTE_TOKENS = 256
NUM_CONTROL_TOKENS = 3


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, max_training_bytes: int = MAX_TRAINING_BYTES, byte_fallback: bool = True
) -> bytes:
    """Train a tokenizer. The same texts give the same bytes.

    Args:
        texts: Texts to train on.
        vocab_size: Number of tokens.
        max_training_bytes: UTF-8 bytes to read at most. Remaining texts are ignored.
        byte_fallback: Whether to include a token for each byte, so that any text can be encoded.

    Returns:
        Content of the model file.

    Raises:
        UserError: The texts are too few for `vocab_size`, or need a larger one.
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
            # Indentation becomes a single token.
            allow_whitespace_only_pieces=True,
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=-1,
            num_threads=TRAINER_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        # The message begins with a line of SentencePiece's code, and ends with the possible sizes.
        reason = str(error).rpartition("] ")[2]
        raise UserError(
            f"SentencePiece cannot train {vocab_size} tokens on {len(lines)} lines: {reason} Give more text or another size"
        ) from error
    return model.getvalue()


def character_tokenizer(alphabet: str) -> "SentencePieceTokenizer":
    """Return a tokenizer without merges: every character of an alphabet is one token."""
    vocab_size = NUM_BYTE_TOKENS + NUM_CONTROL_TOKENS + len(alphabet)
    return SentencePieceTokenizer(train_tokenizer([alphabet], vocab_size))


class SentencePieceTokenizer(Tokenizer):
    """Tokenizer in a SentencePiece model file.

    Args:
        model: File content.
        origin: File name, for errors.

    Raises:
        UserError: The content is no SentencePiece model, or the model lacks </s>.
    """

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
        self.bos_id = None
        if self._processor.bos_id() >= 0:
            self.bos_id = self._processor.bos_id()
        self.eos_id = self._processor.eos_id()
        if self.eos_id < 0:
            raise UserError(
                f"{origin}: it has no </s>, and documents need a token to end with: use a model that was trained with it"
            )
        # Encoding the mark as byte tokens decodes it to itself. SentencePiece alone would decode it to a space.
        self._mark_ids = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE_MARK.encode()]

    def encode(self, text: str) -> list[int]:
        first, *others = self._processor.encode(text.split(SPACE_MARK))
        ids: list[int] = first
        for part in others:
            ids += self._mark_ids
            ids += part
        return ids

    def encode_documents(self, texts: list[str]) -> list[np.ndarray]:
        threads = -1
        if self.num_threads is not None:
            threads = self.num_threads
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
        if token >= self.vocab_size:
            return None
        return self._processor.id_to_piece(token)

    def pieces(self) -> list[str]:
        """Return the text of each token in the model file."""
        return [self._processor.id_to_piece(token) for token in range(self.vocab_size)]

    def control_pieces(self) -> list[str]:
        """Return the texts of tokens that documents never contain, such as </s>."""
        control = []
        for token, piece in enumerate(self.pieces()):
            if self._processor.is_control(token) or self._processor.is_unknown(token):
                control.append(piece)
        return control


def _training_lines(texts: Iterable[str], max_bytes: int) -> list[str]:
    """Return the lines of the texts, up to `max_bytes` in all, cutting long ones."""
    lines = []
    bytes_left = max_bytes
    for text in texts:
        for line in text.split("\n"):
            for begin in range(0, len(line), MAX_LINE_CHARACTERS):
                part = line[begin : begin + MAX_LINE_CHARACTERS]
                lines.append(part)
                bytes_left -= len(part.encode())
                if bytes_left <= 0:
                    return lines
    return lines
