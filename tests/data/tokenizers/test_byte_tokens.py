"""Characters next to stray bytes: decoded as in SentencePiece."""

import sys

import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.decoders import Decoder, DecodeStream
from tokenizers.models import BPE

from megatape.data.tokenizers.byte_tokens import byte_decoders, byte_letters, split_decoder

LLAMA2 = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]


def names(text: bytes) -> list[str]:
    return [f"<0x{byte:02X}>" for byte in text]


@pytest.fixture(params=["export", "llama2"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    if request.param == "llama2":
        exact = split_decoder(decoders.Sequence(LLAMA2)).exact
        assert exact is not None
        return exact
    return decoders.Sequence(byte_decoders())


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (names(b"\xe4" + "你好，世界".encode()), "\ufffd你好，世界"),
        (names("你好".encode() + b"\xff" + "，世界".encode()), "你好\ufffd，世界"),
        (names("é😀".encode() + b"\xf0"), "é😀\ufffd"),
        (names(b"A\xf5\nB\xc0\x80"), "A\ufffd\nB\ufffd\ufffd"),
        ([*names(b"\xe4"), "café", *names("é\n".encode()), "ção", " 漢字", "é"], "\ufffdcaféé\nção 漢字é"),
        (["a<0xE4>", "<0xE4>b", "<0xZZ>", *names("ä".encode())], "a<0xE4><0xE4>b<0xZZ>ä"),
        (["Ġ", "Ã", "<s>", *names(b"\x00\x7f")], "ĠÃ<s>\x00\x7f"),
    ],
)
def test_a_stray_byte_costs_only_itself(decoder: Decoder, tokens: list[str], text: str) -> None:
    assert decoder.decode(tokens) == text


def test_every_character(decoder: Decoder) -> None:
    """Characters are byte tokens or tokens of their own. U+2581 is a space in Llama 2's tokens."""
    codes = [*range(0x800), *range(0x800, 0xD800, 7), *range(0xE000, 0x10000, 7), *range(0x10000, sys.maxunicode + 1, 997)]
    characters = [chr(code) for code in codes if code != 0x2581]
    text = "".join(characters)
    assert decoder.decode(["a", *names(text.encode())]) == "a" + text
    assert decoder.decode(["a", *characters]) == "a" + text


def test_a_stream_of_tokens(decoder: Decoder) -> None:
    """A server decodes token by token: each character appears with its last byte."""
    vocabulary = {name: number for number, name in enumerate(names(bytes(range(256))))}
    tokenizer = Tokenizer(BPE(vocabulary, []))
    tokenizer.decoder = decoder
    stream = DecodeStream(skip_special_tokens=True)
    pieces = [stream.step(tokenizer, token) for token in b"\xe4" + "你好".encode()]
    assert [piece for piece in pieces if piece] == ["\ufffd你", "好"]


def test_letters_are_those_of_the_library() -> None:
    assert sorted(byte_letters()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert all(decoders.ByteLevel().decode([letter]) == chr(byte) for byte, letter in enumerate(byte_letters()[:128]))


@pytest.mark.parametrize("exact", [False, True])
def test_both_decoders_of_a_file(exact: bool) -> None:
    """Exports have the exact decoder, which is slow. Other files have the quick one."""
    after = [decoders.Strip(" ", 1, 0)]
    steps = byte_decoders() if exact else [decoders.ByteFallback(), decoders.Fuse()]
    found = split_decoder(decoders.Sequence([*steps, *after]))
    assert found.exact is not None
    tokens = [" a", *names(b"\xe4" + "你好".encode())]
    assert (found.quick.decode(tokens), found.exact.decode(tokens)) == ("a" + "\ufffd" * 7, "a\ufffd你好")


@pytest.mark.parametrize(
    "other",
    [decoders.ByteLevel(), decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]), decoders.Metaspace()],
    ids=["bytes", "words after bytes", "words"],
)
def test_other_decoders_stay(other: Decoder) -> None:
    """A decoder that needs single tokens after the byte decoder would get their joined text."""
    assert split_decoder(other) == (other, None)
