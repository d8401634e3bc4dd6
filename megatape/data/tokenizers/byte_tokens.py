"""Decodes byte tokens, such as <0xE4>, like SentencePiece: a stray byte does not damage valid characters.

In the tokenizers library, the decoder ByteFallback replaces a whole run of byte tokens if one byte is invalid: a stray byte
before ten Chinese characters gives 31 replacement characters. The decoder ByteLevel keeps valid characters, but expects GPT-2's
alphabet, which has a character for each byte. So byte tokens are first translated into that alphabet. An incomplete character
gives one replacement character, where SentencePiece gives one per byte.

These decoders take about 8 microseconds per token instead of 0.1. Exports include them in tokenizer.json, for other programs.
MegaTAPE decodes with ByteFallback first, and again with these decoders if the text has replacement characters.
"""

import json
from typing import Any, NamedTuple

from tokenizers import Regex, decoders
from tokenizers.decoders import Decoder

REPLACEMENT = "\ufffd"
# Two code points reserved by Unicode for internal use. ByteLevel leaves a token containing them unchanged.
MARK = "\U0010fffe\U0010ffff"
# Beginning of a token with a non-ASCII character, which could be taken for a character of the alphabet.
NOT_ASCII = r"\A(?=[\s\S]*[^\x00-\x7F])"
BYTE = "<(?=0x[89A-F][0-9A-F]>)"
# The "<" of a byte token's name within a longer token.
SPELLED_OUT = rf"(?<=[\s\S]){BYTE}|\A{BYTE}(?=[\s\S]{{6}})"


class Decoders(NamedTuple):
    """Two decoders for the same tokenizer.

    Attributes:
        quick: Decoder that may replace valid characters next to a stray byte.
        exact: Decoder keeping valid characters; None if `quick` keeps them.
    """

    quick: Decoder
    exact: Decoder | None


def split_decoder(decoder: Decoder) -> Decoders:
    """Return a quick decoder using ByteFallback, and an exact one using `byte_decoders` instead.

    Args:
        decoder: Decoder in a tokenizer.json.

    Returns:
        Both decoders if `decoder` has either of the two steps and joins the tokens right after it, as in our exports and in
        Llama 2. Otherwise `decoder` itself, without an exact one.
    """
    steps = json.loads(decoder.__getstate__()).get("decoders", [])
    quick = [{"type": "ByteFallback"}, {"type": "Fuse"}]
    exact = json.loads(decoders.Sequence(byte_decoders()).__getstate__())["decoders"]
    for part in (exact, quick):
        for begin in range(len(steps) - len(part) + 1):
            end = begin + len(part)
            if steps[begin:end] == part:
                before = steps[:begin]
                after = steps[end:]
                return Decoders(_sequence([*before, *quick, *after]), _sequence([*before, *exact, *after]))
    return Decoders(decoder, None)


def byte_decoders() -> list[Decoder]:
    """Return the decoders replacing ByteFallback. They also join the tokens."""
    letters = byte_letters()
    names = [decoders.Replace(f"<0x{byte:02X}>", letters[byte]) for byte in range(0x80, 0x100)]
    return [
        decoders.Replace(Regex(NOT_ASCII), MARK),
        decoders.Replace(Regex(SPELLED_OUT), f"<{MARK}"),
        *names,
        # The remaining byte tokens are ASCII characters.
        decoders.ByteFallback(),
        decoders.ByteLevel(),
        decoders.Replace(MARK, ""),
    ]


def byte_letters() -> list[str]:
    """Return GPT-2's character for each byte.

    Printable Latin-1 characters stand for themselves. Characters from U+0100 on stand for the other bytes, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(0x100 + number) for number, byte in enumerate(others)}
    return [letters[byte] for byte in range(0x100)]


def _sequence(steps: list[dict[str, Any]]) -> Decoder:
    """Build a decoder from steps in the format of tokenizer.json."""
    decoder = decoders.Sequence([])
    decoder.__setstate__(json.dumps({"type": "Sequence", "decoders": steps}).encode())
    return decoder
