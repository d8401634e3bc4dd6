"""The ids of a tokenizer, several times as fast, by the library gigatoken if it is installed.

Its ids are compared with the tokenizer's: on DIVERGENT_INPUTS and on texts with each added token when it is loaded, then on
documents chosen by their hash. The tokenizer itself encodes texts with written out special tokens, which are text to MegaTAPE
and tokens to gigatoken, and texts with added tokens that gigatoken finds in other places.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise

import numpy as np
import orjson
from isal.isal_zlib import crc32

from megatape.data.tokenizers.huggingface import JsonTokenizer, panics_as_errors
from megatape.data.tokenizers.sentencepiece import SPACE_MARK, SentencePieceTokenizer
from megatape.data.tokenizers.tokenizer import JSON_FILE, SENTENCEPIECE_FILE, Tokenizer
from megatape.errors import UserError

LOG = logging.getLogger(__name__)

COMPARED = 500  # one document in this many, by its hash, which takes 2% of the time where gigatoken is ten times as fast
KEPT_CHARACTERS = 2**26  # of which gigatoken keeps every word, in at most 550 MB; then it is loaded again
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
    """Return texts with an added token within words, beside white space, doubled, and in another case."""
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
    """gigatoken does not give the tokenizer's ids.

    Attributes:
        number: Of the text among those encoded.
    """

    def __init__(self, number: int, difference: str) -> None:
        super().__init__(difference)
        self.number = number


class FastTokenizer:
    """Encodes documents as a tokenizer does, on one thread.

    Attributes:
        begin, end: Ids that documents begin and end with, uint32.

    Raises:
        ModuleNotFoundError: gigatoken is not installed.
        UserError: It cannot read the tokenizer, or gives other ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        import gigatoken

        self._tokenizer = tokenizer
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
        self._characters = 0  # since it was loaded
        try:
            self._set_marks([*special, *self._divergent_tokens(special)])
            self._check(DIVERGENT_INPUTS)
        except IdsDiffer as difference:
            raise UserError(str(difference)) from None

    def _set_marks(self, marks: Iterable[str]) -> None:
        """Set the marks. The tokenizer itself encodes documents that contain one.

        Documents are searched for one part of a mark after the other, since few contain even the first part: the last byte of
        its first character, which is found fast, its first two characters, the whole mark.
        """
        marks = list(marks)
        self._last_bytes = {mark[:1].encode()[-1] for mark in marks}
        self._marks = {mark[:2].encode() for mark in marks}, {mark.encode() for mark in marks}

    def _divergent_tokens(self, special: Sequence[str]) -> list[str]:
        """Return the texts of added tokens that gigatoken finds in other places than the tokenizer.

        gigatoken ignores options of added tokens, such as single_word.

        Args:
            special: Texts that the tokenizer itself encodes in any case.

        Raises:
            IdsDiffer: Such a token also stands for texts other than its own, so texts with it cannot be found.
        """
        content = orjson.loads(self._content)
        added = [token for token in content.get("added_tokens") or [] if token["content"] not in special]
        try:
            self._check(text for token in added for text in added_token_texts(token["content"]))
        except IdsDiffer:  # Find out which tokens differ.
            pass
        else:
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

    def _check(self, texts: Iterable[str]) -> None:
        """Compare the ids of all of these texts. Raises IdsDiffer."""
        contents = [text.encode() for text in texts]
        self._compare(contents, self._documents(contents), range(len(contents)))

    def encode_documents(self, contents: list[bytes]) -> list[np.ndarray]:
        """`<s> text </s>` of each text in UTF-8, int32 [tokens].

        Raises:
            IdsDiffer: The ids of one text are wrong, so those of all texts are to be discarded.
        """
        documents = self._documents(contents)
        self._compare(
            contents, documents, [number for number, text in enumerate(contents) if text and not crc32(text) % COMPARED]
        )
        return documents

    def _documents(self, contents: list[bytes]) -> list[np.ndarray]:
        """Encode texts, by the tokenizer itself if a text has a mark. Raises IdsDiffer if gigatoken fails."""
        suspects = {number for byte in self._last_bytes for number, text in enumerate(contents) if byte in text}
        special = [n for n in suspects if all(any(mark in contents[n] for mark in marks) for marks in self._marks)]
        plain = dict(enumerate(contents)) | dict.fromkeys(special, b"")
        documents = self._encode(plain.values())
        for number in special:
            documents[number] = self._tokenizer.encode_documents([contents[number].decode()])[0]
        return documents

    def _encode(self, contents: Iterable[bytes]) -> list[np.ndarray]:
        """The documents of texts."""
        raw: list[np.ndarray] = []  # without control tokens
        try:
            with panics_as_errors():
                for content in contents:
                    raw.append(self.unverified_ids(content))
        except Exception as error:
            raise IdsDiffer(len(raw), f"gigatoken fails ({error!r}) on a text that begins {content.decode()[:40]!r}") from error
        parts = (part for text in raw for part in (self.begin, text, self.end))
        ids = np.concatenate([*parts, self.end[:0]]).view(np.int32)  # all at once, also of no texts
        ends = accumulate((self.begin.size + text.size + self.end.size for text in raw), initial=0)
        return [ids[begin:end] for begin, end in pairwise(ends)]

    def unverified_ids(self, text: str | bytes) -> np.ndarray:
        """Ids of a text alone by gigatoken, uint32."""
        if self._characters > KEPT_CHARACTERS:
            self._gigatoken = self._load(self._content)
            self._characters = 0
        self._characters += len(text)
        return self._gigatoken.encode(text)

    def _compare(self, contents: list[bytes], documents: list[np.ndarray], numbers: Sequence[int]) -> None:
        """Compare the ids of some of the documents. Raises IdsDiffer."""
        texts = [contents[number].decode() for number in numbers]
        for number, text, ids in zip(numbers, texts, self._tokenizer.encode_documents(texts), strict=True):
            if not np.array_equal(ids, documents[number]):
                raise IdsDiffer(
                    number, f"gigatoken gives other ids than {self._tokenizer.file} for a text that begins {text[:40]!r}"
                )


def fast_tokenizer(tokenizer: Tokenizer, warn: Callable[[str], object] = LOG.warning) -> FastTokenizer | None:
    """The fast form of a tokenizer, None if gigatoken is not installed or gives other ids.

    Args:
        tokenizer: Whose ids it must give.
        warn: Gets the reason if it gives others.
    """
    try:
        return FastTokenizer(tokenizer)
    except ModuleNotFoundError:
        return None
    except ValueError as fault:
        warn(f"{fault}: tokenizing without it, which is slower")
        return None


def _content(tokenizer: Tokenizer) -> tuple[str | bytes, list[str]]:
    """The tokenizer.json that gigatoken reads, and the texts that are tokens to it and text to MegaTAPE."""
    if isinstance(tokenizer, JsonTokenizer):
        return tokenizer.files[JSON_FILE], tokenizer.special_texts
    assert isinstance(tokenizer, SentencePieceTokenizer)
    from gigatoken._load.sentencepiece import sentencepiece_to_tokenizer_json

    return sentencepiece_to_tokenizer_json(tokenizer.files[SENTENCEPIECE_FILE]), [*tokenizer.control_pieces(), SPACE_MARK]
