"""Tokenizes faster with the same ids, using the gigatoken library if it is installed.

Its ids are compared with the tokenizer's: when loading it, on DIVERGENT_INPUTS and on texts with each added token; then on
documents sampled by hash. The tokenizer itself encodes texts containing spelled-out special tokens, which are text to MegaTAPE
but tokens to gigatoken, and texts with added tokens that gigatoken finds at other positions.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import orjson
from isal.isal_zlib import crc32

from megatape.data.tokenizers.huggingface import JsonTokenizer, panics_as_errors
from megatape.data.tokenizers.sentencepiece import SPACE_MARK, SentencePieceTokenizer
from megatape.data.tokenizers.tokenizer import JSON_FILE, SENTENCEPIECE_FILE, EncodedDocuments, Tokenizer
from megatape.errors import UserError

LOG = logging.getLogger(__name__)

# One document in this many is compared, chosen by hash. If gigatoken is ten times as fast, comparing takes 2% of the time.
COMPARED = 500
# gigatoken caches every word (up to 550 MB for this many characters). Reloading it empties the cache.
RELOAD_AFTER_CHARACTERS = 2**26
DIVERGENT_INPUTS = (
    "",
    "The fox's dog DON'T jump, I'M sure: it\u2019s 3.14 or 1,234,567 + 0x1F = 2\u00bd.",
    "  leading and trailing   ",
    "\n\n\ttabs\tand\r\nnewlines\r\r\n \n",
    " ",
    "\n",
    "    indented\n        more\n\t \t mixed \x0b\x0c\x85\u2028\u3000",
    "\x00 a\x00b \x7f \xa0 \ufeff \ufffd \ue000 \U0010ffff \ud7ff",
    "na\u00efve e\u0301 \ufb01 \u2163 \u017f's \u0130 \u1e9e \u00b2 \u0663 \u4e94",
    "\u6f22\u5b57\u304b\u306a \ud55c\uae00 \u0939\u093f\u0928\u094d\u0926\u0940 \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f1e9\U0001f1ea",
    "<0x41><0xE2> [UNK] <mask> {{x}} \\n http://a.b/c?d=e&f#g __init__ <!-- -->",
    " " * 257 + "x" + "\n" * 129 + "\t" * 65,
    "x" * 5000,
    "ab" * 2500 + "1" * 999,
    "\u0300" * 300,
)


def added_token_texts(token: str) -> list[str]:
    """Return texts with an added token inside words, next to white space, doubled, and in another case."""
    return [
        token,
        f"{token}{token}",
        f"a{token}b",
        f"a{token} b",
        f"a {token}b",
        f"a {token} b",
        f"a  {token}  b",
        f"a\n{token}\nb",
        f"({token}), {token}.",
        f"{token}1 2{token} _{token}_",
        token.swapcase(),
    ]


class IdsDiffer(Exception):
    """gigatoken's ids differ from the tokenizer's.

    Attributes:
        number: Index of the text among those being encoded.
    """

    def __init__(self, number: int, difference: str) -> None:
        super().__init__(difference)
        self.number = number


class FastTokenizer:
    """Encodes documents like a tokenizer, on one thread.

    Args:
        tokenizer: Tokenizer with the right ids.
        reload_after: Number of characters to encode before reloading gigatoken.

    Attributes:
        vocab_size: Largest id plus one.
        begin: Ids at the beginning of documents, uint32.
        end: Ids at the end of documents, uint32.

    Raises:
        ModuleNotFoundError: gigatoken is not installed.
        UserError: gigatoken cannot read the tokenizer or gives other ids.
    """

    def __init__(self, tokenizer: Tokenizer, reload_after: int = RELOAD_AFTER_CHARACTERS) -> None:
        import gigatoken

        self._reload_after = reload_after
        self._tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        self._load = gigatoken.Tokenizer.from_json
        try:
            with panics_as_errors():
                self._content, special = _content(tokenizer)
                self._gigatoken = self._load(self._content)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise UserError(f"gigatoken cannot read {tokenizer.origin} ({reason})") from error
        self._set_marks(special)
        self.begin = np.array(tokenizer.begin, np.uint32)
        self.end = np.array([tokenizer.eos_id], np.uint32)
        # Number of characters encoded since loading gigatoken.
        self._num_characters = 0
        try:
            self._set_marks([*special, *self._divergent_tokens(special)])
            self._check(DIVERGENT_INPUTS)
        except IdsDiffer as difference:
            raise UserError(str(difference)) from None

    def _set_marks(self, marks: Iterable[str]) -> None:
        """Set the marks. The tokenizer itself encodes documents containing one.

        Searching is staged, because few documents pass even the first stage: the last byte of a mark's first character, which
        is found fast, then its first two characters, then the whole mark.
        """
        marks = list(marks)
        self._marks = {mark.encode() for mark in marks}
        self._mark_beginnings = {mark[:2].encode() for mark in marks}
        self._mark_bytes = {mark[:1].encode()[-1] for mark in marks}

    def _divergent_tokens(self, special: Sequence[str]) -> list[str]:
        """Return the added tokens that gigatoken finds at other positions than the tokenizer.

        gigatoken ignores options of added tokens, such as single_word.

        Args:
            special: Texts that the tokenizer itself encodes in any case.

        Raises:
            IdsDiffer: Such a token is normalized. It also matches other texts, so texts containing it cannot be recognized.
        """
        content = orjson.loads(self._content)
        added = [token for token in content.get("added_tokens") or [] if token["content"] not in special]
        texts: list[str] = []
        for token in added:
            texts += added_token_texts(token["content"])
        if self._agrees(texts):
            return []
        divergent = []
        for token in added:
            try:
                self._check(added_token_texts(token["content"]))
            except IdsDiffer:
                if token.get("normalized") and content.get("normalizer") is not None:
                    raise
                divergent.append(token["content"])
        return divergent

    def _agrees(self, texts: Iterable[str]) -> bool:
        """Whether gigatoken gives the right ids for all texts."""
        try:
            self._check(texts)
        except IdsDiffer:
            return False
        return True

    def _check(self, texts: Iterable[str]) -> None:
        """Raise IdsDiffer unless gigatoken gives the right ids for all texts."""
        contents = [text.encode() for text in texts]
        self._compare(contents, self._encode(contents), range(len(contents)))

    def encode_documents(self, contents: Sequence[bytes]) -> EncodedDocuments:
        """Encode UTF-8 texts as `<s> text </s>`.

        Raises:
            IdsDiffer: The ids of one text are wrong, so discard those of all texts.
        """
        documents = self._encode(contents)
        compared = [number for number, text in enumerate(contents) if text and crc32(text) % COMPARED == 0]
        self._compare(contents, documents, compared)
        return documents

    def _with_marks(self, contents: Sequence[bytes]) -> list[int]:
        """Return the indices of texts containing a mark."""
        suspects = set[int]()
        for byte in self._mark_bytes:
            suspects.update(number for number, text in enumerate(contents) if byte in text)
        with_marks = []
        for number in suspects:
            text = contents[number]
            has_beginning = any(beginning in text for beginning in self._mark_beginnings)
            if has_beginning and any(mark in text for mark in self._marks):
                with_marks.append(number)
        return with_marks

    def _encode(self, contents: Sequence[bytes]) -> EncodedDocuments:
        """Encode texts, using the tokenizer itself for those with a mark. Raises IdsDiffer if gigatoken fails."""
        ids_with_marks = {}
        for number in self._with_marks(contents):
            ids_with_marks[number] = np.array(self._tokenizer.encode(contents[number].decode()), np.uint32)
        ids_of_texts: list[np.ndarray] = []
        try:
            with panics_as_errors():
                for number, content in enumerate(contents):
                    if number in ids_with_marks:
                        ids_of_texts.append(ids_with_marks[number])
                    else:
                        ids_of_texts.append(self.unverified_ids(content))
        except Exception as error:
            raise IdsDiffer(
                len(ids_of_texts), f"gigatoken fails ({error!r}) on a text that begins {content.decode()[:40]!r}"
            ) from error
        return self._as_documents(ids_of_texts)

    def _as_documents(self, ids_of_texts: Sequence[np.ndarray]) -> EncodedDocuments:
        """Add the ids at the beginning and at the end of each document, and join the ids of all documents.

        Adding them while joining is faster than building an array per document.
        """
        # np.concatenate needs an array even if the batch has no texts.
        parts = [self.end[:0]]
        for ids in ids_of_texts:
            parts += (self.begin, ids, self.end)
        num_added = self.begin.size + self.end.size
        lengths = np.array([ids.size + num_added for ids in ids_of_texts], np.int64)
        return EncodedDocuments(np.concatenate(parts).view(np.int32), lengths)

    def unverified_ids(self, text: str | bytes) -> np.ndarray:
        """Return gigatoken's ids for a text, without special tokens, uint32."""
        if self._num_characters > self._reload_after:
            self._gigatoken = self._load(self._content)
            self._num_characters = 0
        self._num_characters += len(text)
        return self._gigatoken.encode(text)

    def _compare(self, contents: Sequence[bytes], documents: EncodedDocuments, numbers: Sequence[int]) -> None:
        """Raise IdsDiffer unless the ids of these documents, given by number, are right."""
        texts = [contents[number].decode() for number in numbers]
        for number, text, ids in zip(numbers, texts, self._tokenizer.encode_documents(texts), strict=True):
            if not np.array_equal(ids, documents.document(number)):
                raise IdsDiffer(
                    number, f"gigatoken gives other ids than {self._tokenizer.file} for a text that begins {text[:40]!r}"
                )


# Tokenizer, or a faster one with the same ids.
AnyTokenizer = Tokenizer | FastTokenizer


def fast_tokenizer(tokenizer: Tokenizer, warn: Callable[[str], object] = LOG.warning) -> FastTokenizer | None:
    """Return the fast version of a tokenizer, or None if gigatoken is not installed or gives other ids.

    Args:
        tokenizer: Tokenizer with the right ids.
        warn: Called with the reason if the ids differ.
    """
    try:
        return FastTokenizer(tokenizer)
    except ModuleNotFoundError:
        return None
    except ValueError as error:
        warn(f"{error}: tokenizing without it, which is slower")
        return None


def _content(tokenizer: Tokenizer) -> tuple[str | bytes, list[str]]:
    """Return the tokenizer.json for gigatoken, and the texts that are tokens to it but text to MegaTAPE."""
    if isinstance(tokenizer, JsonTokenizer):
        return tokenizer.files[JSON_FILE], tokenizer.special_texts
    assert isinstance(tokenizer, SentencePieceTokenizer)
    from gigatoken._load.sentencepiece import sentencepiece_to_tokenizer_json

    return sentencepiece_to_tokenizer_json(tokenizer.files[SENTENCEPIECE_FILE]), [*tokenizer.control_pieces(), SPACE_MARK]
