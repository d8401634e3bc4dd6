"""Decoders of byte tokens, such as <0xE4>, that work like SentencePiece: a stray byte does not damage valid characters.

The decoder ByteFallback of the tokenizers library replaces all bytes of a run of byte tokens if one of them is invalid: one
stray byte before ten Chinese characters gives 31 replacement characters. The decoder ByteLevel keeps valid characters. It takes
tokens in the alphabet of GPT-2, where one character stands for each byte. So byte tokens are translated into that alphabet.
Incomplete characters give one replacement character, where SentencePiece gives one for each of their bytes.

These decoders take about 8 microseconds a token instead of 0.1. Exports have them in tokenizer.json, for other programs.
MegaTAPE decodes by ByteFallback first, and again by these decoders if the text has replacement characters.
"""

import json
from typing import Any, NamedTuple

from tokenizers import Regex, decoders
from tokenizers.decoders import Decoder

REPLACEMENT = "\ufffd"
# Two code points that Unicode reserves for use within programs. ByteLevel takes a token that contains them as it is.
MARK = "\U0010fffe\U0010ffff"
NOT_ASCII = r"\A(?=[\s\S]*[^\x00-\x7F])"  # Beginning of a token with a non-ASCII character, which may be in the alphabet, too.
BYTE = "<(?=0x[89A-F][0-9A-F]>)"
SPELLED_OUT = rf"(?<=[\s\S]){BYTE}|\A{BYTE}(?=[\s\S]{{6}})"  # "<" of a byte token's name within a longer token.


class Decoders(NamedTuple):
    """Two decoders of one tokenizer.

    Attributes:
        quick: Decoder that may replace valid characters beside a stray byte.
        exact: Decoder that keeps valid characters; None if `quick` keeps them.
    """

    quick: Decoder
    exact: Decoder | None


def split_decoder(decoder: Decoder) -> Decoders:
    """Return a quick decoder, with ByteFallback, and an exact one, with `byte_decoders` in its place.

    Args:
        decoder: Decoder of a tokenizer.json.

    Returns:
        Both decoders if `decoder` has one of the two and joins the tokens right after it, as in our exports and Llama 2.
        Otherwise `decoder` is the quick one, and there is no exact one.
    """
    steps = json.loads(decoder.__getstate__()).get("decoders", [])
    quick = [{"type": "ByteFallback"}, {"type": "Fuse"}]
    exact = json.loads(decoders.Sequence(byte_decoders()).__getstate__())["decoders"]
    for found in (exact, quick):
        for place in range(len(steps) - len(found) + 1):
            before = steps[:place]
            rest = steps[place:]
            if rest[: len(found)] == found:
                after = rest[len(found) :]
                return Decoders(_sequence([*before, *quick, *after]), _sequence([*before, *exact, *after]))
    return Decoders(decoder, None)


def byte_decoders() -> list[Decoder]:
    """Return the decoders that replace ByteFallback. They also join the tokens."""
    letters = byte_letters()
    names = [decoders.Replace(f"<0x{byte:02X}>", letters[byte]) for byte in range(0x80, 0x100)]
    return [
        decoders.Replace(Regex(NOT_ASCII), MARK),
        decoders.Replace(Regex(SPELLED_OUT), f"<{MARK}"),
        *names,
        decoders.ByteFallback(),  # For the remaining bytes, which are ASCII characters.
        decoders.ByteLevel(),
        decoders.Replace(MARK, ""),
    ]


def byte_letters() -> list[str]:
    """Return the character that stands for each byte in the alphabet of GPT-2.

    Printable characters of Latin-1 stand for themselves. Characters from U+0100 on stand for the other bytes, in order.
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
