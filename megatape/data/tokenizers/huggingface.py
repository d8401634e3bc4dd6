"""Tokenizers of transformers: tokenizer.json, run by the `tokenizers` library, and the files declaring its special tokens.

transformers gives the same ids with split_special_tokens=True. It also adds the beginning token if the template in
tokenizer.json says so, regardless of add_bos_token in tokenizer_config.json. We avoid its classes: they open folders, while
data directories and checkpoints store verified bytes, and every worker would spend seconds importing them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import tokenizers
from tokenizers.decoders import Decoder

from megatape.data.tokenizers.byte_tokens import REPLACEMENT, split_decoder
from megatape.data.tokenizers.tokenizer import CONFIG_FILE, GENERATION_FILE, JSON_FILE, MAP_FILE, TEMPLATE_FILE, Tokenizer
from megatape.errors import UserError, content_errors
from megatape.utils.files.json_files import parse_json
from megatape.utils.values.validation import as_type


class JsonTokenizer(Tokenizer):
    """A tokenizer.json with its auxiliary files.

    Args:
        files: File name -> content.
        origin: Folder with the files, for errors.
        stored_as: Name under which tokenizer.json is stored, for errors.

    Attributes:
        backend: Tokenizer of the `tokenizers` library. It may replace valid characters next to a stray byte token.
        exact_decoder: Decoder keeping these characters; None if `backend` always keeps them.
        declared: Special tokens by role.

    Raises:
        UserError: The file is corrupted or of an unknown type, declares no end token, or contradicts the other files.
    """

    def __init__(self, files: Mapping[str, bytes], origin: str = "tokenizer", stored_as: str = JSON_FILE) -> None:
        super().__init__({JSON_FILE: files[JSON_FILE], **files}, origin)
        self._stored_as = stored_as
        reason = f"{self._where(JSON_FILE)}: not a tokenizer that the tokenizers library {tokenizers.__version__} can read"
        remedy = "copy the file again, or install the version that wrote it"
        # The library raises nothing more specific than Exception.
        with content_errors(reason, remedy, Exception), panics_as_errors():
            self.backend = tokenizers.Tokenizer.from_buffer(files[JSON_FILE])
        # Files often retain the padding and length limit of the program that saved them.
        self.backend.no_padding()
        self.backend.no_truncation()
        self.backend.encode_special_tokens = True
        self.exact_decoder: Decoder | None = None
        if self.backend.decoder is not None:
            self.backend.decoder, self.exact_decoder = split_decoder(self.backend.decoder)
        if getattr(self.backend.model, "dropout", None):
            raise UserError(
                f"{self._where(JSON_FILE)}: dropout is {self.backend.model.dropout}, so ids are random: set it to null"
            )
        self._ids: dict[str, int] = self.backend.get_vocab()
        self.vocab_size = max(self._ids.values(), default=-1) + 1
        # Documents are encoded as int32.
        if self.vocab_size > 2**31:
            raise UserError(f"{self._where(JSON_FILE)}: it has a token with id {self.vocab_size - 1}: copy the file again")
        self.declared = self._read_declared()
        self.eos_id = self._end()
        self.bos_id = self._beginning()
        if self.bos_id is not None:
            # Our exports do not mark it as special, but a chat template writing it means the token.
            self.backend.add_special_tokens([str(self.piece(self.bos_id))])

    def encode(self, text: str) -> list[int]:
        try:
            with panics_as_errors():
                ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        except RuntimeError as error:
            raise UserError(
                f"{self._where(JSON_FILE)}: cannot be applied to a text that begins {text[:40]!r} ({error}): use a tokenizer "
                "with simpler patterns, or leave out the text"
            ) from None
        return ids

    def encode_documents(self, texts: list[str]) -> list[np.ndarray]:
        # This runs on all cores, unless RAYON_NUM_THREADS or TOKENIZERS_PARALLELISM says otherwise.
        try:
            with panics_as_errors():
                encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        except RuntimeError:
            # Encoding the texts one by one names the one that fails.
            for text in texts:
                self.encode(text)
            raise
        return [np.array([*self.begin, *encoding.ids, self.eos_id], np.int32) for encoding in encodings]

    def encode_rendered(self, text: str) -> list[int]:
        """Return the token ids of a rendered chat template. Special tokens in it become tokens."""
        self.backend.encode_special_tokens = False
        try:
            return self.encode(text)
        finally:
            self.backend.encode_special_tokens = True

    def decode(self, ids: Iterable[int]) -> str:
        tokens = [int(token) for token in ids]
        text = self.backend.decode(tokens, skip_special_tokens=True)
        if REPLACEMENT in text and self.exact_decoder is not None:
            with decoding_by(self.backend, self.exact_decoder):
                text = self.backend.decode(tokens, skip_special_tokens=True)
        return text

    def token_id(self, piece: str) -> int:
        """Return the id of a token, given its text in the file."""
        return self._ids[piece]

    def piece(self, token: int) -> str | None:
        return self.backend.id_to_token(token)

    def special_token(self, role: str) -> str | None:
        """Return the token declared as "bos", "eos", "unk" or "pad", or None if the file has no such token."""
        token = self.declared.get(f"{role}_token")
        text = token
        if isinstance(token, dict):
            text = token.get("content")
        if not isinstance(text, str | None):
            raise UserError(f"{self._where(CONFIG_FILE)}: {role}_token is {token!r}, no token: copy the file again")
        if text not in self._ids:
            return None
        return text

    @cached_property
    def stop_ids(self) -> list[int]:
        """Tokens at which generation stops: those in generation_config.json, and the end token of documents."""
        value = self._object(GENERATION_FILE).get("eos_token_id")
        ids: list[Any] = []
        if isinstance(value, list):
            ids = value
        elif value is not None:
            ids = [value]
        for token in ids:
            if type(token) is not int or not 0 <= token < self.vocab_size:
                raise UserError(
                    f"{self._where(GENERATION_FILE)}: eos_token_id is {value!r}, not of the {self.vocab_size} tokens"
                )
        if self.eos_id in ids:
            return ids
        return [self.eos_id, *ids]

    @cached_property
    def special_texts(self) -> list[str]:
        """Texts of all special tokens."""
        return [token.content for token in self.backend.get_added_tokens_decoder().values() if token.special]

    @cached_property
    def chat_template(self) -> str | None:
        """Jinja chat template that transformers would use, or None."""
        if TEMPLATE_FILE in self.files:
            with content_errors(f"{self.chat_template_origin} is not UTF-8 text", "copy the file again"):
                return self.files[TEMPLATE_FILE].decode()
        template = self._object(CONFIG_FILE).get("chat_template")
        if isinstance(template, list):
            template = _default_template(template)
        if not isinstance(template, str | None):
            raise UserError(f"{self._where(CONFIG_FILE)}: chat_template is {json.dumps(template)[:40]}, no text: copy it again")
        return template

    @property
    def chat_template_origin(self) -> str:
        """Path of the file with the chat template, for errors."""
        if TEMPLATE_FILE in self.files:
            return self._where(TEMPLATE_FILE)
        return self._where(CONFIG_FILE)

    def _read_declared(self) -> dict[str, Any]:
        """Return special tokens by role.

        Like transformers, this reads special_tokens_map.json only next to an older tokenizer_config.json.
        """
        config = self._object(CONFIG_FILE)
        added = config.get("added_tokens_decoder")
        if added is None:
            return config | self._object(MAP_FILE)
        if not isinstance(added, dict):
            added = {"": added}
        for token, entry in added.items():
            if isinstance(entry, dict):
                entry = entry.get("content")
            text = str(entry)
            if str(self._ids.get(text)) != token:
                raise UserError(
                    f"{self._where(CONFIG_FILE)}: added_tokens_decoder has {text!r} as id {token}, {JSON_FILE} has it as "
                    f"{self._ids.get(text)}: the files are not of one tokenizer, copy both again"
                )
        return config

    def _end(self) -> int:
        text = self.special_token("eos")
        if text is None:
            raise UserError(
                f"{self.origin}: eos_token of {CONFIG_FILE} or {MAP_FILE} is {self.declared.get('eos_token')!r}: documents "
                f"need a token to end with, name one of {JSON_FILE} there"
            )
        # A token not marked as special would be found in texts.
        self.backend.add_special_tokens([text])
        if self._ids[text] in self.encode(text):
            raise UserError(
                f"{self._where(JSON_FILE)}: {text!r} in a text becomes the end token: use a tokenizer that keeps it text"
            )
        return self._ids[text]

    def _beginning(self) -> int | None:
        """Return the token that the template in tokenizer.json adds before a text, or None."""
        reason = f"{self._where(JSON_FILE)}: corrupted, its template cannot be applied"
        with content_errors(reason, "copy the file again", RuntimeError), panics_as_errors():
            encoding = self.backend.encode("a")
        num_front = 0
        for is_added in encoding.special_tokens_mask:
            if not is_added:
                break
            num_front += 1
        front = encoding.ids[:num_front]
        if len(front) > 1 or front == [self.eos_id]:
            raise UserError(
                f"{self._where(JSON_FILE)}: texts begin with {[self.piece(token) for token in front]}: documents can begin "
                "with one token, and not with that which ends them"
            )
        if front and front[0] >= self.vocab_size:
            raise UserError(f"{self._where(JSON_FILE)}: texts begin with token {front[0]}, which it lacks: copy the file again")
        if not front:
            return None
        return front[0]

    def _object(self, name: str) -> dict[str, Any]:
        """Return the content of an auxiliary file, empty if the file is missing."""
        if name not in self.files:
            return {}
        with content_errors(f"{self._where(name)}: no JSON object", "copy the file again"):
            return as_type(parse_json(self.files[name]), dict[str, Any])

    def _where(self, name: str) -> str:
        if name == JSON_FILE:
            name = self._stored_as
        return f"{self.origin}/{name}"


def _default_template(templates: list[Any]) -> Any:
    """Return the template named "default", or None."""
    for entry in templates:
        if entry.get("name") == "default":
            return entry.get("template")
    return None


@contextmanager
def decoding_by(backend: tokenizers.Tokenizer, decoder: Decoder) -> Iterator[None]:
    """Temporarily replace the decoder of a tokenizer."""
    before = backend.decoder
    backend.decoder = decoder
    try:
        yield
    finally:
        backend.decoder = before


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Convert Rust panics to RuntimeError. For example, a pattern may exceed a limit of the engine."""
    try:
        yield
    except BaseException as error:
        # The class of panics cannot be imported, and BaseException is its only base.
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(str(error)) from None
